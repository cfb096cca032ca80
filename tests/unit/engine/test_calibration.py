"""What a probe of the machine says of the engine's steps."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dray import machine
from dray.engine import calibration
from dray.engine.calibration import _Feed, vocabulary_of
from dray.engine.loop_stats import LoopStats
from dray.requests.model import Outcome
from dray.requests.spool.spool import decode

pytestmark = pytest.mark.unit


class Apart:
    """A replica whose core is a process of its own: its loop sees first tokens and ends, and no steps."""

    def __init__(self) -> None:
        self.stats = LoopStats()
        self.rows: list[bytes] = []

    def status(self) -> Any:
        return SimpleNamespace(stats=self.stats)

    def feed(self, session: str, lines: list[bytes], last: bool) -> None:
        self.rows = lines

    def results(self, session: str, rows: int) -> Any:
        self.stats.steps += 2
        self.stats.busy_seconds += 1.5
        yield [
            Outcome(index=one.index, custom_id=one.custom_id, response=b"{}")
            for one in map(decode, self.rows)
        ]


@pytest.mark.parametrize(
    ("rows", "prompt", "output", "steps"), [(1, 16, 48, 48), (256, 16, 1, 2), (128, 128, 16, 23)]
)
def test_steps_are_those_of_the_engine(rows: int, prompt: int, output: int, steps: int) -> None:
    engine: Any = Apart()
    found = _Feed(engine, 1000, 2048).run(rows, prompt, output)
    assert (found["steps"], found["seconds"]) == (steps, 1.5)


def test_a_containers_processor_is_measured_with_the_threads_of_its_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of them than its name says cores would be held up, and measure the quota's pauses."""
    threads: list[int] = []
    cuda = SimpleNamespace(is_available=lambda: False)
    torch = SimpleNamespace(cuda=cuda, bfloat16="bf16", float32="fp32", set_num_threads=threads.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("_gemm_rate", "_bandwidth"):
        monkeypatch.setattr(calibration, name, lambda *_: 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(128))
    monkeypatch.setattr(machine, "_quota", lambda: 4)
    calibration._hardware(machine.processor_name())
    assert threads == [4]


def test_a_model_that_also_sees_has_the_vocabulary_of_its_text() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "vocab_size": 262208}
    assert vocabulary_of(json.dumps({"model_type": "gemma3", "text_config": text})) == 262208
    with pytest.raises(SystemExit, match=r"the family 'unheard' .*; calibrate with another --model"):
        vocabulary_of('{"model_type": "unheard"}')
