"""Inputs from datasets of a hub: formats, patterns, branches and pages, beside a client that others wrote."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dray.errors import InputError
from dray.requests.ingest import ingest
from dray.requests.reading.inputs import digest, expand
from dray.requests.reading.tables import file_rows
from dray.requests.sources import Rows
from dray.storage.files import open_lines
from tests.support.s3_emulator import EmulatorProcess
from tests.support.sources import source_of

pytestmark = pytest.mark.integration

ROOT = "hf://datasets/org/set"
COPY = "refs%2Fconvert%2Fparquet"
TEXTS = [f"text {number}" for number in range(5)]
LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
CSV = b"text\n" + "".join(f"{text}\n" for text in TEXTS).encode()
FILES = {
    "data/train.jsonl": LINES,
    "data/train-0.jsonl.gz": gzip.compress(LINES),
    "data/train-1.jsonl.zst": pyarrow.compress(LINES, codec="zstd", asbytes=True),
    "data/a b#1?.csv": CSV,
    "data/100%25.tsv": CSV,
    "data/deep/part.jsonl": LINES,
    "data[1].jsonl": LINES,
    "README.md": b"# A card\n",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    server = EmulatorProcess(tmp_path_factory.mktemp("hub"))
    yield server
    server.stop()


@pytest.fixture
def hub(running: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatorProcess:
    """The hub; its large files are on another host."""
    running.behave()
    monkeypatch.setenv("HF_ENDPOINT", running.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return running


@pytest.fixture(autouse=True)
def folder(running: EmulatorProcess) -> Iterator[Path]:
    """The files of the dataset's main branch, and a branch with a copy in Parquet."""
    above = running.root / "hub/datasets/org"
    for name, content in FILES.items():
        put(above / "set" / name, content)
    for shard in range(3):
        place = above / f"set@{COPY}/default/train/{shard:04}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        noise = [os.urandom(20_000) for _ in range(500)]
        table = pyarrow.table({"text": [f"{shard}"] * 500, "noise": noise})
        parquet.write_table(table, place, row_group_size=250, compression="none")
    yield above / "set"
    shutil.rmtree(above)


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def names(*patterns: str) -> list[str]:
    """What patterns match, without the dataset and its commit."""
    refs = expand([f"{ROOT}{pattern}" for pattern in patterns])
    assert all(ref.version and ref.size for ref in refs)
    return [ref.uri.partition("@")[2].partition("/")[2] for ref in refs]


def problem_of(address: str) -> str:
    with pytest.raises(InputError) as refused:
        expand([address])
    return refused.value.problems[0].message


@pytest.mark.parametrize("name", [name for name in FILES if name != "README.md"])
def test_each_format_and_compression_is_read(hub: EmulatorProcess, tmp_path: Path, name: str) -> None:
    source = source_of(f"{ROOT}/{name}", prompt_column="text", delimiter="," if "sv" in name else None)
    said: list[str] = []
    taken = ingest(source, spool_uri=str(tmp_path / "spool.jsonl"), say=said.append)
    commit = taken.files[0].partition("@")[2].partition("/")[0]
    assert said == [f"dataset org/set at commit {commit}"]
    spool = (tmp_path / "spool.jsonl").read_text()
    assert taken.rows == len(TEXTS)
    assert all(text in spool for text in TEXTS)


def test_patterns_match_as_in_a_bucket(hub: EmulatorProcess) -> None:
    assert names("/data/train-*.jsonl*") == ["data/train-0.jsonl.gz", "data/train-1.jsonl.zst"]
    assert names("/**/*.jsonl") == ["data/deep/part.jsonl", "data/train.jsonl", "data[1].jsonl"]
    assert names("/d*/d??p/[p-q]*.jsonl") == ["data/deep/part.jsonl"]
    assert names("/data[1].jsonl") == ["data[1].jsonl"]  # its own name, and no pattern
    assert names("@main/data/deep/**", "/data/train.jsonl") == ["data/deep/part.jsonl", "data/train.jsonl"]
    with pytest.raises(InputError, match="named twice"):
        names("/data/train.jsonl", "@main/data/*.jsonl")


def test_a_branch_with_a_slash_and_its_parquet(hub: EmulatorProcess, folder: Path) -> None:
    expected = [f"default/train/{shard:04}.parquet" for shard in range(3)]
    for revision in (COPY, "refs/convert/parquet"):
        assert names(f"@{revision}/default/train/*.parquet") == expected
        assert names(f"@{revision}/**/*.parquet") == expected
    refs = expand([f"{ROOT}@refs/convert/parquet/**/*.parquet"])
    hub.behave()
    source = source_of([ref.uri for ref in refs], prompt_column="text")
    assert isinstance(source, Rows)
    rows = [row for ref in refs for row in file_rows(ref.uri, source, 1 << 20, None)]
    assert [number for number, _ in rows] == [*range(1, 501)] * 3
    assert {row["text"] for _, row in rows if isinstance(row, dict)} == {"0", "1", "2"}
    served = {name.rpartition("/")[2]: size for name, size in hub.served().items()}
    assert set(served) == {"0000.parquet", "0001.parquet", "0002.parquet"}
    assert sum(served.values()) < sum(ref.size for ref in refs) / 2  # the other column is not read


def test_a_folder_of_many_files_comes_in_pages(hub: EmulatorProcess, folder: Path) -> None:
    for number in range(2500):
        put(folder / f"many/{number:04}.jsonl", b"{}\n")
    assert len(names("/many/*.jsonl")) == 2500  # 1,000 on a page
    hub.behave(page_entries=3)
    assert names("/data/*.jsonl*") == ["data/train-0.jsonl.gz", "data/train-1.jsonl.zst", "data/train.jsonl"]
    assert len(names("/data/**")) == len([name for name in FILES if name.startswith("data/")])


def test_what_is_read_is_the_commit_that_was_found(hub: EmulatorProcess, folder: Path) -> None:
    refs = expand([f"{ROOT}/data/*.jsonl"])
    shutil.copytree(folder, folder.with_name("set@old"))  # so that the hub still has the commit
    put(folder / "data/train.jsonl", LINES * 2)
    [(_, first)] = [line for line in open_lines(refs[0].uri) if line[0] == len(TEXTS)]
    assert first == json.dumps({"text": TEXTS[-1]}).encode()
    assert len(list(open_lines(refs[0].uri))) == len(TEXTS)
    now = expand([f"{ROOT}/data/*.jsonl"])
    assert now[0].uri != refs[0].uri
    assert digest(now) != digest(refs) == digest(expand([ref.uri for ref in refs]))


def test_another_commit_with_the_same_files_is_the_same_input(hub: EmulatorProcess, folder: Path) -> None:
    before = expand([f"{ROOT}/data/*.jsonl"])
    put(folder / "README.md", b"# Another card\n")
    after = expand([f"{ROOT}/data/*.jsonl"])
    assert before[0].uri != after[0].uri
    assert digest(before) == digest(after)


def test_a_file_that_is_named_has_the_version_of_one_that_is_listed(hub: EmulatorProcess) -> None:
    for name in ("data/train.jsonl", "data/train-0.jsonl.gz"):
        [listed] = expand([f"{ROOT}/{name}*"])
        assert expand([f"{ROOT}/{name}"]) == [listed]


def test_a_bad_row_is_named_by_file_and_line(hub: EmulatorProcess, folder: Path, tmp_path: Path) -> None:
    put(folder / "data/bad.jsonl", LINES + b"no json\n")
    with pytest.raises(InputError) as refused:
        ingest(source_of(f"{ROOT}/data/bad.jsonl", prompt_column="text"), spool_uri=str(tmp_path / "spool"))
    [problem] = refused.value.problems
    assert problem.line == len(TEXTS) + 1
    assert problem.file is not None
    assert problem.file.startswith(f"{ROOT}@")
    assert problem.file.endswith("/data/bad.jsonl")


def test_an_address_without_a_file_says_what_there_is(hub: EmulatorProcess, folder: Path) -> None:
    for place in (ROOT, f"{ROOT}/", f"{ROOT}@main"):
        told = problem_of(place)
        assert told.startswith("name files of the dataset, for example '")
        with pytest.raises(InputError, match="name files of the dataset, for example"):
            source_of(place)
    assert f"'{ROOT}/data/*.csv' (1 file), '{ROOT}/data/*.jsonl' (1 file), " in told
    assert told.endswith(", and 4 more of such patterns")
    expected = f"name files of the dataset, for example '{ROOT}@{COPY}/default/train/*.parquet' (3 files)"
    assert problem_of(f"{ROOT}@{COPY}") == expected
    with pytest.raises(InputError, match=r"for example '.*/data/deep/\*\.jsonl' \(1 file\)$"):
        source_of(f"{ROOT}/data/deep/")
    assert f"'{ROOT}/data/deep/*.jsonl' (1 file)" in problem_of(f"{ROOT}/data/deep")
    missing = problem_of(f"{ROOT}/data/deep/none-*.csv")
    assert missing.startswith("the pattern matches no file; name files of the dataset, for example '")
    assert f"'{ROOT}/data/deep/*.jsonl' (1 file)" in missing
    assert problem_of(f"{ROOT}/none/x.csv").startswith("no such file in dataset org/set at ")
    put(folder.with_name("empty") / "README.md", b"#")
    assert "has no file that dray reads" in problem_of("hf://datasets/org/empty")
    assert f"'hf://datasets/org/empty@{COPY}/**/*.parquet'" in problem_of("hf://datasets/org/empty")


def test_what_is_not_there_or_not_ours(hub: EmulatorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no dataset org/other" in problem_of("hf://datasets/org/other/a.jsonl")
    assert "has no revision 'v2'" in problem_of(f"{ROOT}@v2/data/train.jsonl")
    assert "has no revision 'ffff" in problem_of(f"{ROOT}@{'f' * 40}/data/train.jsonl")
    hub.behave(access_key="canary")
    assert "HF_TOKEN holds a token that may read it" in problem_of(f"{ROOT}/data/train.jsonl")
    monkeypatch.setenv("HF_TOKEN", "canary")
    assert names("/data/train.jsonl") == ["data/train.jsonl"]


@pytest.mark.heavy(one_of=3)
def test_a_client_that_others_wrote_finds_the_same(
    hub: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the server answers as the client of the real one expects, and dray reads as that client does."""
    theirs = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    files = theirs.HfFileSystem(endpoint=os.environ["HF_ENDPOINT"], token=False, skip_instance_cache=True)
    api = theirs.HfApi(endpoint=os.environ["HF_ENDPOINT"], token=False)
    hub.behave(page_entries=2)
    for revision, pattern in (("", "data/*.jsonl*"), ("", "**/*.jsonl"), (f"@{COPY}", "**/*.parquet")):
        found = files.glob(f"datasets/org/set{revision}/{pattern}")
        assert len(found) > 1
        assert names(f"{revision}/{pattern}") == [name.split("/", 3)[3] for name in found]
    refs = {ref.uri.partition("@")[2].partition("/")[2]: ref for ref in expand([f"{ROOT}/data/*.jsonl*"])}
    tree = api.list_repo_tree("org/set", "data", repo_type="dataset")
    listed = {one.path: one for one in tree if "jsonl" in one.path}
    assert {name: ref.size for name, ref in refs.items()} == {name: one.size for name, one in listed.items()}
    assert {name: ref.version for name, ref in refs.items()} == {
        name: one.lfs.sha256 if one.lfs else one.blob_id for name, one in listed.items()
    }
    commit = api.repo_info("org/set", repo_type="dataset").sha
    assert {ref.uri.partition("@")[2].partition("/")[0] for ref in refs.values()} == {commit}
