"""Before a run dray takes a small input in to judge it, and no more than a moment's worth of it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dray.cli import preflight
from dray.errors import InputError, JobPausedError
from dray.job.options.request import JobRequest
from dray.storage.files import AtomicFile

pytestmark = pytest.mark.unit

MB = 1 << 20


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that files of requests were given."""
    found: list[int] = []
    write = AtomicFile.write

    def counted(file: AtomicFile, data: bytes) -> None:
        found.append(len(data))
        write(file, data)

    monkeypatch.setattr(AtomicFile, "write", counted)
    return found


def _documents(folder: Path, questions: list[str | None]) -> Path:
    """Twenty documents of 10 KB, each with many questions: a dictionary makes a small file of them."""
    documents = [f"D{number} " * 2_500 for number in range(20)]
    asked = [documents[row % 20] for row in range(len(questions))]
    table = pyarrow.table({"document": asked, "question": questions})
    parquet.write_table(table, folder / "in.parquet", compression="zstd")
    assert (folder / "in.parquet").stat().st_size < MB
    return folder / "in.parquet"


def _request(file: Path, **rows: object) -> JobRequest:
    return JobRequest.of(
        str(file), "simulated", str(file.parent / "out"), engine={"name": "simulated"}, rows=rows
    )


def test_a_small_file_of_large_requests_is_not_written_out(tmp_path: Path, written: list[int]) -> None:
    file = _documents(tmp_path, [f"question {row}" for row in range(8_000)])
    preflight.preflight(_request(file, template="{document}\n{question}"))
    assert sum(written) < 34 * MB


def test_nor_one_of_lines_with_a_long_system_prompt(tmp_path: Path, written: list[int]) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"q": "x"}\n' * 10_000)
    preflight.preflight(_request(file, prompt_column="q", system_prompt="be kind " * 1_000))
    assert sum(written) < 34 * MB


def test_what_is_wrong_in_its_first_rows_is_told(tmp_path: Path) -> None:
    questions = [None if row == 3 else f"question {row}" for row in range(8_000)]
    with pytest.raises(InputError, match=r"in\.parquet:4.*question"):
        preflight.preflight(
            _request(_documents(tmp_path, list(questions)), template="{document}\n{question}")
        )


def test_a_small_input_is_judged_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"q": "x", "id": str(row)}) for row in range(2_000)]
    file.write_text("\n".join([*lines, '{"q": "again", "id": "7"}']))
    with pytest.raises(InputError, match=r"2001.*custom_id"):
        preflight.preflight(_request(file, prompt_column="q", id_column="id"))


def test_a_full_folder_for_temporary_files_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job writes its requests to its output, which has room."""
    write = AtomicFile.write

    def full(file: AtomicFile, data: bytes) -> None:
        if "dray-preflight-" in file.uri:
            raise JobPausedError("No space left on device")
        write(file, data)

    monkeypatch.setattr(AtomicFile, "write", full)
    (tmp_path / "in.jsonl").write_text('{"q": "x"}\n')
    preflight.preflight(_request(tmp_path / "in.jsonl", prompt_column="q"))
