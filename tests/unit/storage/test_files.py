"""Files by URI on the local disk."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas
import pytest

from dray.errors import ConfigError, InputError, JobFailedError, JobPausedError
from dray.requests.reading.frames import frame_to_source
from dray.requests.reading.inputs import digest, expand, pattern_for
from dray.requests.row_shape import RowShape
from dray.requests.sources import source_of
from dray.storage import ObjectStoreOptions, check_writable, remote
from dray.storage.files import local_path, stream_range, write_atomic
from dray.storage.objects import ObjectInfo

pytestmark = pytest.mark.unit


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(folder: Path, *inputs: str) -> list[str]:
    return [os.path.relpath(ref.uri, folder) for ref in expand([str(folder / item) for item in inputs])]


def test_a_uri_of_a_file_is_decoded_unless_its_spelling_is_a_name(tmp_path: Path) -> None:
    file = tmp_path / "a b ü.jsonl"
    assert local_path(file.as_uri()) == file
    assert local_path(str(tmp_path / "a%20b")) == tmp_path / "a%20b"  # a path is no URI
    assert local_path(f"file://{tmp_path}/%00") == tmp_path / "%00"
    spelled = tmp_path / "50%25.jsonl"
    assert local_path(f"file://{spelled}") == tmp_path / "50%.jsonl"
    spelled.touch()
    assert local_path(f"file://{spelled}") == spelled


def test_a_uri_below_a_folder_whose_name_is_spelled_so(tmp_path: Path) -> None:
    """Hive and Spark name folders so; what lies in them may be a pattern, or still to be made."""
    touch(tmp_path, "time=10%3A00/a.jsonl")
    folder = tmp_path / "time=10%3A00"
    [found] = expand([f"file://{folder}/*.jsonl"])
    assert local_path(found.uri) == folder / "a.jsonl"
    assert local_path(f"file://{folder}/new/out") == folder / "new" / "out"
    assert local_path(f"file://{folder}/50%25") == folder / "50%25"
    touch(tmp_path, "time=10:00/b.jsonl")  # beside it, as another one
    assert local_path(f"file://{folder}/out") == folder / "out"
    assert local_path(f"file://{folder}/b.jsonl") == tmp_path / "time=10:00" / "b.jsonl"


def test_a_uri_below_a_folder_whose_name_is_encoded(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    assert local_path(f"{folder.as_uri()}/new") == folder / "new"  # neither is there: as RFC 8089 has it
    folder.mkdir()
    assert local_path(f"{folder.as_uri()}/*%20c.jsonl") == folder / "* c.jsonl"
    assert local_path(f"{tmp_path.as_uri()}/a%20b%2Fnew") == folder / "new"


def test_globs_are_sorted_and_inputs_keep_their_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.jsonl", "a.jsonl", "z.jsonl", "deep/x/c.jsonl", "odd[1].jsonl")
    assert names(tmp_path, "z.jsonl", "[ab].jsonl") == ["z.jsonl", "a.jsonl", "b.jsonl"]
    assert names(tmp_path, "**/c.jsonl") == ["deep/x/c.jsonl"]
    assert names(tmp_path, "odd[1].jsonl") == ["odd[1].jsonl"]
    [ref] = expand([f"file://{tmp_path}/a.jsonl"])
    assert ref.size == len("a.jsonl")


def test_every_unusable_input_is_named_at_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl")
    inputs = [str(tmp_path / item) for item in ("a.jsonl", "gone.jsonl", "*.csv", "", "./a.jsonl")]
    with pytest.raises(InputError) as caught:
        expand([*inputs, "ftp://host/x"])
    found = [(problem.code, problem.file) for problem in caught.value.problems]
    assert found == [
        ("missing_input", inputs[1]),
        ("missing_input", inputs[2]),
        ("missing_input", inputs[3]),
        ("duplicate_input", inputs[4]),
        ("missing_input", "ftp://host/x"),
    ]
    assert "*.jsonl" in caught.value.problems[2].message  # a folder: the hint


def test_two_names_of_one_file_are_a_duplicate(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    with pytest.raises(InputError) as caught:
        expand([str(tmp_path / "*.jsonl")])
    assert [problem.code for problem in caught.value.problems] == ["duplicate_input"]


def test_digest_is_of_content_not_of_names(tmp_path: Path) -> None:
    touch(tmp_path, "a", "b")
    (tmp_path / "c").write_text("a")
    a, b, c = (expand([str(tmp_path / name)]) for name in "abc")
    assert digest(a) == digest(c) != digest(b)
    assert digest([*a, *b]) != digest([*b, *a])


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.bin"
    with write_atomic(str(target)) as file:
        file.write(b"abc")
        assert not target.exists()
    assert target.read_bytes() == b"abc"
    assert (file.info().size, file.info().sha256) == (3, hashlib.sha256(b"abc").hexdigest())
    with pytest.raises(KeyError), write_atomic(str(target)) as file:
        file.write(b"half")
        raise KeyError
    assert [path.name for path in target.parent.iterdir()] == ["out.bin"]
    assert target.read_bytes() == b"abc"


def test_what_was_written_so_far_can_be_read(tmp_path: Path) -> None:
    with write_atomic(str(tmp_path / "out")) as file:
        file.write(b"a\nb\n")
        with file.reread() as written:
            assert list(written) == [b"a\n", b"b\n"]
        file.write(b"c\n")
    assert (tmp_path / "out").read_bytes() == b"a\nb\nc\n"


def test_ranges(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    assert b"".join(stream_range(str(path), 10, 5)) == bytes(range(10, 15))
    assert b"".join(stream_range(str(path), 95, 50)) == bytes(range(95, 100))
    assert b"".join(stream_range(str(path), 5, 0)) == b""


def test_a_writable_folder_is_left_as_it_was(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []


def test_what_a_killed_check_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from dray.storage import check_writable\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "check_writable(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    check_writable(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file/below", "file", "https://host/out", "/proc/nowhere"])
def test_unwritable_outputs_are_refused_before_work(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    directory = place if place.startswith(("https:", "/")) else str(tmp_path / place)
    with pytest.raises(ConfigError, match=directory):
        check_writable(directory)


def test_an_output_that_ray_would_delete_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative --output of `ray job submit --working-dir .`: completed, and gone afterwards."""
    unpacked = tmp_path / "session_1/runtime_resources/working_dir_files/_ray_pkg_0123"
    unpacked.mkdir(parents=True)
    (tmp_path / "link").symlink_to(unpacked)
    monkeypatch.chdir(unpacked)
    for output in ("out", str(tmp_path / "link" / "out"), f"file://{unpacked}/out", "."):
        with pytest.raises(ConfigError, match="Ray deletes this folder after the job; give an absolute path"):
            check_writable(output)
    assert list(unpacked.iterdir()) == []
    check_writable(str(tmp_path / "out"))


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that this account may neither list nor enter; the superuser becomes another for that."""
    superuser = os.geteuid() == 0
    with TemporaryDirectory() as place:  # pytest's own folders keep other accounts out
        Path(place).chmod(0o711)
        folder = Path(place) / "closed"
        touch(folder, "in.jsonl")
        folder.chmod(0)
        if superuser:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if superuser:
                os.seteuid(0)
            folder.chmod(0o700)


def test_a_folder_without_permission_is_refused_in_words(closed: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(str(closed / "out"))
    with pytest.raises(InputError, match="may not read"):
        source_of(str(closed))
    with pytest.raises(InputError, match="cannot tell the format"):
        source_of(str(closed / "in"))
    with pytest.raises(InputError, match="no permission"):
        expand([str(closed / "in.jsonl")])
    frame, held = pandas.DataFrame({"text": ["a"]}), []
    with pytest.raises(JobFailedError, match="cannot be written"):
        texts = RowShape(prompt_column="text")
        frame_to_source(frame, closed / "frame", texts, before_writing=lambda: held.append(1))
    assert held == [1]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl")).write_text("x")
    for item in ("*.jsonl", "caf\udce9.jsonl"):
        with pytest.raises(InputError, match="not UTF-8; rename") as caught:
            names(tmp_path, item)
        assert str(caught.value).encode()
        assert "caf\\udce9.jsonl" in str(caught.value)


def test_options_hide_their_secrets() -> None:
    options = ObjectStoreOptions(secret_access_key="hush", extra=(("session_token", "hush"),))
    assert "hush" not in repr(options)
    found = ObjectStoreOptions.from_env({"AWS_ENDPOINT_URL": "http://x:1", "AWS_REGION": "eu"})
    assert found == ObjectStoreOptions(endpoint="http://x:1", region="eu", allow_http=True)


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({}, "eu-west-1"),
        ({"AWS_PROFILE": "other"}, "us-west-2"),
        ({"AWS_PROFILE": "absent"}, None),
        ({"AWS_DEFAULT_REGION": "ap-south-1"}, "ap-south-1"),
    ],
)
def test_the_region_of_a_profile_goes_along(
    tmp_path: Path, variables: dict[str, str], region: str | None
) -> None:
    """Nodes have no such file, and without a region S3's tools ask in us-east-1."""
    file = tmp_path / "config"
    file.write_text("[default]\nregion = eu-west-1\n[profile other]\nregion = us-west-2\n")
    found = ObjectStoreOptions.from_env({"AWS_CONFIG_FILE": str(file), **variables})
    assert found.region == region


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
        (errno.EROFS, "let the job write there"),
        (errno.EACCES, "let the job write there"),
    ],
)
def test_a_place_that_takes_no_more_pauses_with_advice(
    tmp_path: Path, number: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JobPausedError) as caught, write_atomic(str(tmp_path / "rows.jsonl")) as file:
        file.write(b"{}\n")
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / 'rows.jsonl'} cannot be written: {os.strerror(number)}; {advice}")
    assert "`dray resume JOB`" in told


def test_another_fault_of_a_disk_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(JobFailedError) as caught, write_atomic(str(tmp_path / "rows.jsonl")) as file:
        file.write(b"{}\n")
    assert not isinstance(caught.value, JobPausedError)


@pytest.mark.parametrize(
    ("pattern", "uri", "matches"),
    [
        ("s3://b/in/*.jsonl", "s3://b/in/output.jsonl", True),
        ("s3://b/**", "s3://b/in/output.jsonl", True),
        ("s3://b/*.jsonl", "s3://b/in/output.jsonl", False),
        ("s3://b/in/*.jsonl", "/in/output.jsonl", False),
        ("https://host/in/*.jsonl", "https://host/in/output.jsonl", False),  # a web server has no listings
        ("in/output.jsonl", "in/output.jsonl", False),  # named, and not matched
        ("file:///in/*.jsonl", "/in/output.jsonl", True),
    ],
)
def test_which_pattern_a_file_would_match(pattern: str, uri: str, matches: bool) -> None:
    assert (pattern_for(uri, [pattern]) == pattern) == matches


@pytest.mark.parametrize("pattern", [
    "run[1]/*.jsonl", "run[[]1]/*.jsonl", "run?1?/*.jsonl", "run[12]/*.jsonl", "*/*.jsonl", "**/*.jsonl",
    "**", "run[1]/**", ".h/*.jsonl", ".*/*", "run[1]/.h/out*", "*/.h/out*", "run[1]/**/*.jsonl", "[r.]*/*",
    "b]/*", "b[]]/*", "run[1]/../run1/*", "*.jsonl", ".h/../*/[!e]*",
])  # fmt: skip
@pytest.mark.parametrize("here", [".", "run[1]", ".h"])
def test_it_would_match_what_the_pattern_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, here: str
) -> None:
    for folder in ("run[1]/.h", "run1", ".h", "b]"):
        (tmp_path / folder).mkdir(parents=True)
    files = [folder / "output.jsonl" for folder in (tmp_path, *tmp_path.rglob("*"))]
    for file in files:
        file.touch()
    monkeypatch.chdir(tmp_path / here)
    for given in (pattern, f"{tmp_path}/{pattern}", f"../{tmp_path.name}/{pattern}"):
        try:
            found = {os.path.abspath(ref.uri) for ref in expand([given])}  # noqa: PTH100  '..' goes
        except InputError:
            found = set()
        assert {str(file) for file in files if pattern_for(str(file), [given])} == found


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("s3://b/in/**/*.jsonl", ["s3://b/in/a.jsonl", "s3://b/in/out/output.jsonl"]),
        ("s3://b/in/**", ["s3://b/in/a.jsonl", "s3://b/in/out/output.jsonl"]),
        ("s3://b/in/out/.dray/**/*.jsonl", ["s3://b/in/out/.dray/job-0/requests-1.jsonl"]),
    ],
)
def test_the_requests_of_jobs_in_a_bucket_are_no_input(
    monkeypatch: pytest.MonkeyPatch, pattern: str, found: list[str]
) -> None:
    """A job that writes below its own input would else take its requests for rows."""
    names = ["a.jsonl", "out/output.jsonl", "out/.dray/job-0/requests-1.jsonl"]
    infos = [ObjectInfo(uri=f"s3://b/in/{name}", size=1, version="v", etag="v") for name in names]

    def head(uri: str, options: object) -> ObjectInfo:
        raise FileNotFoundError(uri)

    monkeypatch.setattr(remote, "head", head)
    monkeypatch.setattr(remote, "list_under", lambda prefix, options, odd: iter(infos))
    assert [ref.uri for ref in expand([pattern])] == found


def test_a_bracket_that_nothing_closes_stands_for_itself() -> None:
    assert pattern_for("s3://b/data[v1/output.jsonl", ["s3://b/data[v1/*.jsonl"])
