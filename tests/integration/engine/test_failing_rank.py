"""An engine of two ranks whose second one fails: vLLM asks the first alone, which waits for the second."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dray.engine.replica import Replica
from dray.errors import EngineDeadError
from tests.support.engines import Runner, generation_spec, lines

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RANKS = {
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
    "worker_cls": "tests.support.broken_workers.Hungry",
}
BODY = {"prompt": "please help", "max_tokens": 32, "ignore_eos": True}


@pytest.mark.parametrize("core", ["apart", "inside"])
@pytest.mark.heavy
def test_memory_that_a_rank_lacked_ends_the_engine_at_once(lively_model: Path, core: str) -> None:
    pytest.importorskip("vllm")
    spec = generation_spec(lively_model, engine_core=core, **RANKS)
    runner = Runner(Replica("hungry", spec, exit_when_dead=False))
    runner.replica.ready()
    session = runner.session()
    began = time.monotonic()
    runner.replica.feed(session, lines([BODY]), last=True)
    with pytest.raises(EngineDeadError) as caught:
        list(runner.replica.results(session, 1, 0.02))
    took = time.monotonic() - began
    runner.replica.stop()
    assert str(caught.value) == "OutOfMemoryError in rank 1"
    assert caught.value.oom
    assert took < 100  # vLLM would wait for 300 s; inside, it first ends its ranks, for 24 s
    assert "secret words" not in str(runner.replica.status().log)
