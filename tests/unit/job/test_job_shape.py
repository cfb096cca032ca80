"""The shape of a job's rows, from rows all over its spool."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.job.rows.job_shape import job_sequences, job_shape
from dray.requests.model import Request
from dray.requests.spool.spool import encode
from dray.requests.task_shape import shape_of_rows

pytestmark = pytest.mark.unit

URL = "/v1/completions"
JOB: Any = SimpleNamespace(settings=SimpleNamespace(objects=None))


def _shards(folder: Path, temperatures: list[float]) -> list[Any]:
    """A spool of shards of 50 rows, each with its temperature."""
    spool, found = folder / "spool", []
    with spool.open("wb") as file:
        for number, temperature in enumerate(temperatures):
            offset = file.tell()
            for row in range(50):
                body = {"prompt": f"{number} {row}", "temperature": temperature}
                file.write(encode(Request(index=row, custom_id=f"{number}-{row}", url=URL, body=body)))
            found.append(SimpleNamespace(uri=str(spool), offset=offset, length=file.tell() - offset))
    return found


def test_rows_that_ask_the_same_have_a_shape(tmp_path: Path) -> None:
    bodies = [{"prompt": f"{n} {n}", "temperature": 0.0} for n in range(20)]
    lines = [encode(Request(index=n, custom_id=str(n), url=URL, body=one)) for n, one in enumerate(bodies)]
    expected = shape_of_rows([line.rstrip(b"\n") for line in lines])
    assert job_shape(JOB, _shards(tmp_path, [0.0] * 20)) == expected is not None


def test_rows_from_all_over_the_job_are_looked_at(tmp_path: Path) -> None:
    assert job_shape(JOB, _shards(tmp_path, [0.0] * 10 + [1.0] * 10)) is None


def test_a_spool_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    shards = _shards(tmp_path, [0.0])
    (tmp_path / "spool").unlink()
    assert job_shape(JOB, shards) is None


def test_the_sequences_of_rows_are_their_prompts_and_the_answers_to_each(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    bodies: list[dict[str, Any]] = [{"prompt": ["a", "b", "c"], "n": 2.0}, {"prompt": "a"}]
    requests = [Request(index=row, custom_id=str(row), url=URL, body=body) for row, body in enumerate(bodies)]
    spool.write_bytes(b"".join(map(encode, requests)))
    shards: Any = [SimpleNamespace(uri=str(spool), offset=0, length=spool.stat().st_size)]
    assert job_sequences(JOB, shards) == (2.0, 1.75)
    spool.unlink()
    assert job_sequences(JOB, shards) == (1.0, 1.0)
