"""The files that the user keeps."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dray.codes import ErrorCode
from dray.errors import JobFailedError
from dray.requests.model import Outcome
from dray.requests.outputs import parquet as output_parquet
from dray.requests.outputs.files import write_outputs
from tests.support.openai_reader import as_openai_reads

pytestmark = pytest.mark.unit

text = st.text(st.characters(exclude_categories=["Cs"]))


def chat(content: str) -> bytes:
    return orjson.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "id": "x"})


def _response(status: str, *texts: str) -> bytes:
    parts = [{"type": "output_text", "text": text} for text in texts]
    output = [{"type": "reasoning"}, *({"type": "message", "content": [part]} for part in parts)]
    format_of_text = {"format": {"type": "text"}}
    return orjson.dumps({"object": "response", "output": output, "status": status, "text": format_of_text})


answers = st.builds(lambda c, content: Outcome(0, c, chat(content)), text, text)
failures = st.builds(
    lambda c, message: Outcome(0, c, error_code="poison", error_message=message), st.none() | text, text
)
jobs = st.lists(st.one_of(answers, failures), max_size=40).map(
    lambda rows: [row._replace(index=number * 2, prompt_tokens=number) for number, row in enumerate(rows)]
)


def paged(rows: list[Outcome], size: int) -> Iterator[list[Outcome]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


@given(jobs, st.integers(1, 50))
def test_every_row_is_in_one_file_in_order(rows: list[Outcome], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = write_outputs(paged(rows, size), directory=folder)
        output = [orjson.loads(line) for line in (Path(folder) / "output.jsonl").read_bytes().splitlines()]
        errors = [orjson.loads(line) for line in (Path(folder) / "errors.jsonl").read_bytes().splitlines()]
    good = [row for row in rows if row.response is not None]
    bad = [row for row in rows if row.response is None]
    assert [(row["custom_id"], row["response"]["body"], row["error"]) for row in output] == [
        (row.custom_id, orjson.loads(row.response or b""), None) for row in good
    ]
    assert [(row["custom_id"], row["error"]) for row in errors] == [
        (row.custom_id, {"code": row.error_code, "message": row.error_message}) for row in bad
    ]
    assert (written.output.rows, written.errors.rows) == (len(good), len(bad))


@settings(max_examples=20)
@given(jobs, st.integers(1, 50), st.integers(1, 50), st.sampled_from(["jsonl", "parquet"]))
def test_bytes_do_not_depend_on_paging(rows: list[Outcome], one: int, other: int, form: str) -> None:
    digests = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_parquet, "_GROUP_ROWS", 7)
        for size in (one, other):
            written = write_outputs(paged(rows, size), directory=folder, format=form)  # type: ignore[arg-type]
            digests.append([info.sha256 for info in written.files.values()])
    assert digests[0] == digests[1]


def test_the_line_is_that_of_the_openai_format(tmp_path: Path) -> None:
    write_outputs([[Outcome(7, "a", b'{"x": 1}')]], directory=str(tmp_path))
    assert (tmp_path / "output.jsonl").read_text() == (
        '{"id":"batch_req_000000000007","custom_id":"a","response":{"status_code":200,'
        '"request_id":"req_000000000007","body":{"x": 1}},"error":null}\n'
    )
    assert (tmp_path / "errors.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("context_length_exceeded", 400, "invalid_request_error"),
        ("model_mismatch", 404, "not_found_error"),
        ("expired", 408, "timeout_error"),
        ("poison", 500, "server_error"),
        ("out_of_memory", 500, "server_error"),
    ],
)
def test_an_error_row_has_the_response_that_clients_look_for(
    tmp_path: Path, code: ErrorCode, status: int, kind: str
) -> None:
    write_outputs([[Outcome(7, "a", error_code=code, error_message="why")]], directory=str(tmp_path))
    row = orjson.loads((tmp_path / "errors.jsonl").read_bytes())
    assert row["error"] == {"code": code, "message": "why"}
    assert row["response"] == {
        "status_code": status,
        "request_id": "req_000000000007",
        "body": {"error": {"message": "why", "type": kind, "param": None, "code": code}},
    }


LINE_ENDS = "\u2028 \u2029 \x85 \r\n \x0b \x0c \x1c \x1d \x1e"


def test_the_line_reader_of_openai_finds_the_rows(tmp_path: Path) -> None:
    """It takes every line end of Unicode for one."""
    rows = [
        Outcome(0, f"id {LINE_ENDS}", chat(f"text {LINE_ENDS}")),
        Outcome(1, f"id {LINE_ENDS}", error_code="poison", error_message=f"why {LINE_ENDS}"),
    ]
    write_outputs([rows], directory=str(tmp_path))
    [answer] = as_openai_reads(tmp_path / "output.jsonl")
    assert answer["custom_id"] == f"id {LINE_ENDS}"
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == f"text {LINE_ENDS}"
    [error] = as_openai_reads(tmp_path / "errors.jsonl")
    assert (error["custom_id"], error["error"]["message"]) == (f"id {LINE_ENDS}", f"why {LINE_ENDS}")


def test_a_pretty_printed_answer_still_takes_one_line(tmp_path: Path) -> None:
    write_outputs([[Outcome(0, "a", b'{\n "x": 1\n}')]], directory=str(tmp_path))
    assert len((tmp_path / "output.jsonl").read_bytes().splitlines()) == 1


def test_parquet_has_the_fields_as_columns(tmp_path: Path) -> None:
    embedding = b'{"data":[{"embedding":[0.5,1.0]}]}'
    completion = b'{"choices":[{"text":"t","finish_reason":"length"}]}'
    rows = [
        Outcome(0, "a", chat("hi"), prompt_tokens=3, completion_tokens=4),
        Outcome(1, "b", embedding),
        Outcome(2, None, error_code="poison", error_message="why"),
        Outcome(3, "c", completion),
        Outcome(4, "d", _response("completed", "a", "b")),
        Outcome(5, "e", _response("incomplete", "a")),
        Outcome(6, "f", _response("completed")),
    ]
    written = write_outputs([rows], directory=str(tmp_path), format="parquet")
    assert sorted(written.files) == ["errors.parquet", "output.parquet"]
    table = parquet.read_table(tmp_path / "output.parquet").to_pylist()
    assert [(row["index"], row["text"], row["embedding"], row["finish_reason"]) for row in table] == [
        (0, "hi", None, "stop"),
        (1, None, [0.5, 1.0], None),
        (3, "t", None, "length"),
        (4, "ab", None, "stop"),
        (5, "a", None, "length"),
        (6, None, None, "stop"),  # calls of tools alone
    ]
    assert (table[0]["prompt_tokens"], table[0]["completion_tokens"]) == (3, 4)
    assert table[1]["response"] == embedding.decode()
    errors = parquet.read_table(tmp_path / "errors.parquet").to_pylist()
    assert errors == [{"index": 2, "custom_id": None, "code": "poison", "message": "why"}]


def test_nothing_is_published_when_the_rows_end_badly(tmp_path: Path) -> None:
    def pages() -> Iterator[list[Outcome]]:
        yield [Outcome(0, "a", b"{}")]
        raise JobFailedError("the store went away")

    with pytest.raises(JobFailedError):
        write_outputs(pages(), directory=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_more_is_named_with_the_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(JobFailedError, match=r"output\.jsonl cannot be written: File too large"):
            write_outputs([[Outcome(0, "a", b'"' + b"x" * (4 << 20) + b'"')]], directory=str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
