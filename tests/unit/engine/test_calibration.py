"""What a probe of the machine says of the engine's steps."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

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


def test_a_model_that_also_sees_has_the_vocabulary_of_its_text() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "vocab_size": 262208}
    assert vocabulary_of(json.dumps({"model_type": "gemma3", "text_config": text})) == 262208
    with pytest.raises(SystemExit, match=r"the family 'unheard' .*; calibrate with another --model"):
        vocabulary_of('{"model_type": "unheard"}')
