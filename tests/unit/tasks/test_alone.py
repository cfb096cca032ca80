"""Two jobs at once in one process: the second is refused before it takes anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError
from flows import batch_inference as module
from flows.batch_inference import batch_inference
from tasks.alone import alone

pytestmark = pytest.mark.unit


def test_a_second_job_beside_the_first_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "warn_of_loop", lambda: None)
    given: dict[str, Any] = {"input": "none.jsonl", "model": "m", "output": str(tmp_path / "out")}

    async def second() -> None:
        await asyncio.to_thread(batch_inference.fn, **given)

    with alone(), pytest.raises(ConfigError, match=r"another job runs in this process.*a process for each"):
        asyncio.run(second())
    assert not (tmp_path / "out").exists()


def test_the_next_job_may_begin_however_the_last_one_ended() -> None:
    for _ in range(2):
        with pytest.raises(KeyError), alone():
            raise KeyError
