"""Files as people have them: other endings, encodings and shapes, each taken or refused with what to do."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from dray.errors import InputError, Problem
from dray.requests.ingest import Ingested, ingest
from dray.requests.reading.frames import frame_to_source
from dray.requests.reading.inputs import expand
from dray.requests.reading.json_lines import json_lines
from dray.requests.reading.readers import ReadLimits
from dray.requests.row_shape import RowShape
from dray.requests.sources import Source
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

CHAT = "/v1/chat/completions"
ROWS: list[dict[str, Any]] = [
    {"custom_id": str(n), "url": CHAT, "body": {"messages": [{"role": "user", "content": "ü"}]}}
    for n in range(3)
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def take(
    folder: Path, source: Source, skip_invalid: bool = False, limits: ReadLimits | None = None
) -> Ingested:
    spool = str(folder / "job" / "spool.jsonl")
    return ingest(source, spool_uri=spool, skip_invalid=skip_invalid, limits=limits)


def refused(
    folder: Path, source: Source, skip_invalid: bool = False, limits: ReadLimits | None = None
) -> InputError:
    with pytest.raises(InputError) as caught:
        take(folder, source, skip_invalid, limits)
    assert list(folder.glob("job/*")) == []
    return caught.value


def put(folder: Path, name: str, content: bytes) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return str(folder / name)


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


def marked(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet", ".jsonl.gz", ""])
@pytest.mark.parametrize("make", [_pipe, _socket, _device])
def test_what_is_no_file_is_refused_before_it_is_opened(
    tmp_path: Path, make: Callable[[Path], None], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nothing writes to hung the job; of one without an ending, that alone was told."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    path = Path(f"in{ending}")
    make(path)
    kinds: dict[Callable[[Path], None], str] = {_pipe: "a pipe", _socket: "a socket", _device: "a device"}
    kind = kinds[make]
    names = [str(path), path.absolute().as_uri()] + ([f"*{ending}"] if ending else [])
    for name in names:
        with pytest.raises(InputError, match="write the rows to a file, and name that") as caught:
            expand(source_of(name, prompt_column="text").inputs)  # type: ignore[union-attr]
        [problem] = caught.value.problems
        assert problem.code == "unreadable_input"
        assert problem.message.startswith(kind)


def test_what_another_process_writes_is_refused_with_the_same_words(tmp_path: Path) -> None:
    """``<(...)`` and ``/dev/stdin``: no ending says what they hold."""
    code = "import sys; from dray.requests.sources import source_of; source_of(sys.argv[1])"
    for named in ("/dev/stdin", "<(cat in.jsonl)"):
        shell = f"cat in.jsonl | {shlex.quote(sys.executable)} -c {shlex.quote(code)} {named}"
        put(tmp_path, "in.jsonl", LINES)
        ended = subprocess.run(
            ["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert "a pipe, no file" in ended.stderr
        assert "write the rows to a file" in ended.stderr


@pytest.mark.parametrize("name", ["in.jsonl", "in.json", "in.ndjson", "IN.JSONL"])
@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        gzip.compress,
        zstd,
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
    ],
)
def test_json_lines_of_any_ending_compression_and_line_end(
    tmp_path: Path, name: str, wrap: Callable[[bytes], bytes]
) -> None:
    data = wrap(LINES)
    suffix = ".gz" if data[:2] == b"\x1f\x8b" else ".zst" if data[:2] == b"\x28\xb5" else ""
    assert take(tmp_path, source_of(put(tmp_path, name + suffix, data))).requests == 3


@pytest.mark.parametrize(("encoding", "told"), [
    ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.tsv"])
def test_other_encodings_are_said_once_with_the_command(
    tmp_path: Path, name: str, encoding: str, told: str
) -> None:
    text = LINES.decode() if name == "in.jsonl" else "id,text\n1,ü\n"
    path = put(tmp_path, name, text.encode(encoding))
    source = source_of(path) if name == "in.jsonl" else source_of(path, prompt_column="text")
    [problem] = refused(tmp_path, source, skip_invalid=True).problems
    assert (problem.code, problem.file) == ("invalid_text", path)
    assert told in problem.message
    assert f"iconv -f {told} -t UTF-8" in problem.message


ARRAYS = [
    json.dumps(ROWS).encode(),
    json.dumps(ROWS, indent=2).encode(),
    b"\n\n [\n" + b",\n".join(LINES.splitlines()) + b"\n]\n",
    b"\xef\xbb\xbf" + json.dumps(ROWS).encode() + b"\r\n",
]


@pytest.mark.parametrize("content", ARRAYS)
@pytest.mark.parametrize("limit", [1 << 20, 100])
@pytest.mark.parametrize("skip_invalid", [False, True])
def test_a_json_array_is_said_once_with_the_command_that_converts_it(
    tmp_path: Path, content: bytes, limit: int, skip_invalid: bool
) -> None:
    path = put(tmp_path, "in.json", content)
    limits = ReadLimits(line_bytes=limit)
    for source in (source_of(path), source_of(path, prompt_column="custom_id")):
        [problem] = refused(tmp_path, source, skip_invalid, limits).problems
        assert (problem.code, problem.file, problem.line) == ("not_json_lines", path, None)
        assert "one JSON array" in problem.message
        assert problem.message.endswith("jq -c '.[]' in.json > in.jsonl")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("in.jsonl", "jq -c '.[]' in.jsonl > in.rows.jsonl"),
        ("in.json.gz", "gzip -dc in.json.gz | jq -c '.[]' > in.jsonl"),
        ("in.json.zst", "zstd -dc in.json.zst | jq -c '.[]' > in.jsonl"),
        ("it's in.json", "jq -c '.[]' 'it'\"'\"'s in.json' > 'it'\"'\"'s in.jsonl'"),
    ],
)
def test_the_command_fits_the_file(tmp_path: Path, name: str, command: str) -> None:
    wrap = gzip.compress if name.endswith(".gz") else zstd if name.endswith(".zst") else bytes
    [problem] = refused(tmp_path, source_of(put(tmp_path, name, wrap(ARRAYS[1])))).problems
    assert problem.message.endswith(command)
    if not name.endswith(".zst"):  # its command is not installed everywhere, nor is jq: the shell's part
        subprocess.run(["sh", "-n", "-c", problem.message.partition("convert it: ")[2]], check=True)


def test_one_object_over_many_lines_is_said_once(tmp_path: Path) -> None:
    path = put(tmp_path, "in.json", json.dumps({"data": ROWS}, indent=1).encode())
    [problem] = refused(tmp_path, source_of(path)).problems
    assert problem.code == "not_json_lines"
    assert "jq -c '.' in.json" in problem.message


@pytest.mark.parametrize("first", [b"[]", b"[1]", b'[{"a": 1}]', b"{", b"[1,"])
def test_a_bad_first_line_is_a_bad_row_and_no_document(tmp_path: Path, first: bytes) -> None:
    ingested = take(tmp_path, source_of(put(tmp_path, "in.jsonl", first + b"\n" + LINES)), skip_invalid=True)
    assert (ingested.rows, ingested.requests) == (4, 3)


def test_a_folder_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    for name in ("data/a.parquet", "data/b.parquet", "data/README.md", "data/deep/c.parquet"):
        put(tmp_path, name, b"x")
    folder = str(tmp_path / "data")
    [problem] = refused_source(folder)
    assert problem.code == "missing_input"
    assert problem.message == f"a folder, with 2 .parquet; name its files: '{folder}/*.parquet'"
    [problem] = refused_source(f"{folder}/")
    assert f"'{folder}/*.parquet'" in problem.message


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ["x/a.jsonl.gz", "x/b.jsonl.gz", "x/c.csv"],
            "2 .jsonl.gz, 1 .csv; name its files: '{}/x/*.jsonl.gz'",
        ),
        (["x/deep/a.csv"], "1 .csv below it; name its files: '{}/x/**/*.csv'"),
        (["x/README.md"], "no file that dray reads (.jsonl, .ndjson, .json, .csv, .tsv, .parquet)"),
    ],
)
def test_what_a_folder_holds(tmp_path: Path, names: list[str], told: str) -> None:
    for name in names:
        put(tmp_path, name, b"x")
    [problem] = refused_source(str(tmp_path / "x"))
    assert told.format(tmp_path) in problem.message


@pytest.mark.parametrize("name", ["a.csv", "deep/a.csv"])
@pytest.mark.parametrize("folder", ["[2024] mail", "what?", "it's [new]"])
def test_a_folder_may_have_the_signs_of_patterns_in_its_name(tmp_path: Path, folder: str, name: str) -> None:
    put(tmp_path, f"{folder}/{name}", b"p\nhello\n")
    [problem] = refused_source(str(tmp_path / folder))
    [pattern] = shlex.split(problem.message.rpartition("name its files: ")[2])
    given = f"{tmp_path}/{folder}/{name.replace('a.', '*.')}"
    for one in (pattern, given):
        assert [ref.uri for ref in expand([one])] == [f"{tmp_path}/{folder}/{name}"]


def refused_source(*inputs: str) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        source_of(inputs, prompt_column="p")
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("name", "content", "option", "delimiter"),
    [
        ("in.csv", b"id;text\n1;a,b\n", "';'", ";"),
        ("in.csv", b"id|text\n1|a\n", "'|'", "|"),
        ("in.csv", b"id\ttext\n1\ta\n", "tab", "tab"),
        ("in.tsv", b"id,text\n1,a\n", "','", ","),
        ("in.csv", b'"id";"text"\n"1";"a;b"\n', "';'", ";"),
    ],
)
def test_another_delimiter_is_named_and_can_be_given(
    tmp_path: Path, name: str, content: bytes, option: str, delimiter: str
) -> None:
    path = put(tmp_path, name, content)
    [problem] = refused(tmp_path, source_of(path, prompt_column="text")).problems
    assert problem.code == ("invalid_csv" if b'"' in content else "missing_column")
    assert problem.message.endswith(f"--delimiter {option}")
    assert take(tmp_path, source_of(path, prompt_column="text", delimiter=delimiter)).requests == 1


def test_bad_rows_offer_to_skip_them(tmp_path: Path) -> None:
    bad = ROWS[1] | {"url": "/v1/moderations"}
    content = b"".join(json.dumps(row).encode() + b"\n" for row in (ROWS[0], bad, ROWS[2]))
    error = refused(tmp_path, source_of(put(tmp_path, "in.jsonl", content)))
    [problem] = error.problems
    assert (problem.code, problem.line, error.total) == ("unknown_url", 2, 1)
    assert "--skip-invalid" in str(error).splitlines()[-1]
    assert take(tmp_path, source_of(str(tmp_path / "in.jsonl")), skip_invalid=True).requests == 2


def test_what_cannot_be_skipped_does_not_offer_it(tmp_path: Path) -> None:
    embedding = ROWS[1] | {"url": "/v1/embeddings"}
    content = b"".join(json.dumps(row).encode() + b"\n" for row in (ROWS[0], embedding))
    for source in (
        source_of(put(tmp_path, "mixed.jsonl", content)),
        source_of(put(tmp_path, "array.json", ARRAYS[0])),
        source_of(put(tmp_path, "none.jsonl", b"")),
    ):
        assert "--skip-invalid" not in str(refused(tmp_path, source))


# ---- inputs without a row, and without a valid one: one rule ----


def empties(folder: Path) -> list[Source]:
    url = f"sqlite:///{folder}/data.db"
    (folder / "data.db").touch()
    empty = pyarrow.table({"text": pyarrow.array([], pyarrow.string())})
    parquet.write_table(empty, folder / "in.parquet")
    return [
        source_of(put(folder, "in.jsonl", b"")),
        source_of(put(folder, "blank.jsonl", b"\n\r\n")),
        source_of(put(folder, "in.jsonl.gz", gzip.compress(b""))),
        source_of(put(folder, "in.jsonl", b""), prompt_column="text"),
        source_of(put(folder, "in.jsonl", b""), messages_column="messages"),
        source_of(put(folder, "none.csv", b""), prompt_column="text"),
        source_of(put(folder, "header.csv", b"id,text\n"), prompt_column="text"),
        source_of(put(folder, "header.tsv", b"id\ttext\n\n"), prompt_column="text"),
        source_of(str(folder / "in.parquet"), prompt_column="text"),
        source_of(str(folder / "in.parquet")),
        source_of(url, query="select 1 as text where 0", prompt_column="text"),
        frame_to_source(pandas.DataFrame({"text": []}), folder / "f", RowShape(prompt_column="text")),
        frame_to_source(pandas.DataFrame({"messages": []}), folder / "g", RowShape()),
        source_of([put(folder, f"part-{n}.jsonl", b"") for n in range(3)]),
    ]


@pytest.mark.parametrize("number", range(14))
@pytest.mark.parametrize("skip_invalid", [False, True])
def test_an_input_without_a_row_is_refused_whatever_its_form(
    tmp_path: Path, number: int, skip_invalid: bool
) -> None:
    error = refused(tmp_path, empties(tmp_path)[number], skip_invalid)
    assert [problem.code for problem in error.problems] == ["empty_input"]
    assert error.exit_code == 2


def test_one_empty_file_of_several_is_no_problem(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", b"")
    put(tmp_path, "b.jsonl", LINES)
    put(tmp_path, "c.jsonl", b"\n")
    assert take(tmp_path, source_of(str(tmp_path / "*.jsonl"))).requests == 3
    put(tmp_path, "a.csv", b"text\n")
    put(tmp_path, "b.csv", b"text\nhi\n")
    assert take(tmp_path, source_of(str(tmp_path / "*.csv"), prompt_column="text")).requests == 1


@pytest.mark.parametrize("content", [b"oops\n" * 30, b"{}\n", b'{"custom_id": "a", "url": "/v2"}\n' * 2])
def test_a_file_of_bad_rows_alone_is_no_job_of_error_rows(tmp_path: Path, content: bytes) -> None:
    rows = content.count(b"\n")
    error = refused(tmp_path, source_of(put(tmp_path, "in.jsonl", content)), skip_invalid=True)
    first, *others = error.problems
    assert (first.code, error.total) == ("no_valid_row", rows + 1)
    assert f"no row of {rows} is" in first.message or rows == 1
    assert [problem.line for problem in others] == list(range(1, min(rows, 19) + 1))


# ---- whatever the rows ----

objects = st.dictionaries(
    st.sampled_from(["id", "body", "messages", "prompt", '"', "{"]), st.text(max_size=5)
)


@given(st.lists(objects, min_size=1, max_size=4), st.sampled_from([None, 0, 1, 4, "\t"]), st.booleans())
def test_arrays_of_objects_are_documents_and_lines_of_them_are_not(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]], indent: int | str | None, end: bool
) -> None:
    folder = tmp_path_factory.mktemp("json")
    array = json.dumps(rows, indent=indent) + "\n" * end
    path = put(folder, "array.json", array.encode())
    with pytest.raises(InputError, match="one JSON array"):
        json_lines(path, limit=1 << 20)
    lines = [json.dumps(row).encode() for row in rows]
    path = put(folder, "lines.json", b"\n".join(lines) + b"\n" * end)
    assert [line for _, line in json_lines(path, limit=1 << 20)] == lines


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["id", "messages", "text"]), values), min_size=1, max_size=6))
def test_each_row_of_a_messages_column_is_one_request_or_one_error_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    good = {"messages": ROWS[0]["body"]["messages"], "id": "good"}
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in [good, *rows])
    source = source_of(put(folder, "in.jsonl", lines), messages_column="messages")
    ingested = take(folder, source, skip_invalid=True)
    errors = [outcome for page in ingested.rejects() for outcome in page]
    assert ingested.requests + len(errors) == ingested.rows == len(rows) + 1
    assert all(error.error_code and "in.jsonl:" in (error.error_message or "") for error in errors)
