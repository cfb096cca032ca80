"""An engine on a part of a GPU takes the memory of a full step in its turn, before the next one measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.vllm_adapter import engine as engines
from dray.engine.vllm_adapter.full_step import shapes_of, take_full_step
from tests.support.engines import CONTEXT, MAX_NUM_SEQS, answer_of, generation_spec, running

pytestmark = pytest.mark.integration

TOKENS = 1000


@given(seqs=st.integers(1, 1024), tokens=st.integers(1, 16384), longest=st.integers(2, 40960))
def test_the_prompts_fill_a_step_as_far_as_the_model_can(seqs: int, tokens: int, longest: int) -> None:
    shapes = shapes_of(seqs, tokens, longest)
    assert len(shapes) == min(seqs, tokens)
    assert all(1 <= length < longest for length in shapes)
    assert sum(shapes) == min(tokens, len(shapes) * (longest - 1))


@pytest.mark.parametrize("core", ["inside", "apart"])
@pytest.mark.heavy
def test_it_computes_one_before_its_turn_ends(
    lively_model: Path, monkeypatch: pytest.MonkeyPatch, core: str
) -> None:
    seen: list[Any] = []

    @contextmanager
    def turn(gpus: float) -> Iterator[None]:
        seen.append("begin")
        yield
        seen.append("end")

    def counted(engine: Any) -> None:
        seen.append("step")
        if core == "inside":
            _count(engine.engine_core.engine_core.scheduler, seen)
        take_full_step(engine)
        assert not engine.has_unfinished_requests()

    monkeypatch.setattr(engines, "turn_on", turn)
    monkeypatch.setattr(engines, "take_full_step", counted)
    spec = generation_spec(lively_model, engine_core=core, max_num_batched_tokens=TOKENS)
    with running(replace(spec, gpus=0.5)) as runner:
        sizes = [(TOKENS, MAX_NUM_SEQS)] if core == "inside" else []
        assert seen[: 3 + len(sizes)] == ["begin", "step", *sizes, "end"]
        answer = answer_of(runner.one({"prompt": "please help", "max_tokens": 4, "ignore_eos": True}))
    assert answer["usage"]["completion_tokens"] == 4
    assert TOKENS < MAX_NUM_SEQS * CONTEXT


def _count(scheduler: Any, seen: list[Any]) -> None:
    """Note the tokens and the sequences of each step that computes something."""
    schedule = scheduler.schedule

    def counted(*arguments: Any, **options: Any) -> Any:
        found = schedule(*arguments, **options)
        if found.total_num_scheduled_tokens:
            seen.append((found.total_num_scheduled_tokens, len(found.num_scheduled_tokens)))
        return found

    scheduler.schedule = counted
