"""A core that computes says so, whatever vLLM has to say of its steps. No engine starts here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.heavy(one_of=3)
def test_a_core_without_statistics_has_a_beat(quiet_vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With disable_log_stats vLLM says nothing of a step of a long prompt, and no statistics of any."""
    from vllm.v1.engine import EngineCoreOutputs

    from dray.engine.vllm_adapter.core import scheduler as module
    from dray.engine.vllm_adapter.core.timings import Timings

    class Silent:
        """vLLM's scheduler, by what it says of its next step."""

        said: dict[int, Any]

        def update_from_output(self, *_: Any) -> dict[int, Any]:
            return dict(self.said)

    class Whole(module._Whole, Silent):
        def __init__(self) -> None:
            self._whole, self._said, self.tuner = {}, 0.0, None

    scheduler = Whole()
    computed, waited = (SimpleNamespace(total_num_scheduled_tokens=tokens) for tokens in (512, 0))

    def step(of: Any) -> list[Any]:
        return list(scheduler.update_from_output(of, None).values())

    messages: list[Any] = []
    for said in ({}, {0: EngineCoreOutputs()}):
        scheduler.said, scheduler._said = said, 0.0
        assert step(waited) == []
        messages += step(computed)
        assert step(computed) == []  # not four times a second yet
    assert len(messages) == 2

    monkeypatch.setattr("dray.engine.vllm_adapter.core.timings.tells_beats", lambda config: True)
    core = SimpleNamespace(get_output=lambda: messages.pop(0) if messages else EngineCoreOutputs())
    processor = SimpleNamespace(log_stats=True)
    timings = Timings(SimpleNamespace(vllm_config=None, engine_core=core, output_processor=processor))
    for _ in range(4):
        core.get_output()
    assert timings.progress == 2  # an empty one is the front's own: nothing came for a while
