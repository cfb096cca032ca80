"""The replica on a GPU: the same code as on CPU, with weights that are made up.

Run with ``pytest -m gpu tests/gpu`` on a machine with a GPU and ``dray[gpu]``. No GPU has run this test
yet; ``tests.benchmarks.gpu`` ran the same replica on an H200 (26 November 2026).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.kinds import Kind
from dray.requests.model import Request
from dray.requests.spool.spool import encode
from tests.support.tiny_model import sentence, write_tiny_model

pytestmark = pytest.mark.gpu


def test_a_replica_answers_every_row_on_a_gpu(tmp_path: Path, rng: random.Random) -> None:
    model = write_tiny_model(tmp_path / "model", hidden=512, layers=4)
    spec = EngineSpec(name="vllm", model=str(model), kind=Kind.COMPLETION, arguments={"load_format": "dummy"})
    replica = Replica("gpu-0", spec, exit_when_dead=False)
    info = replica.ready()
    lines = [
        encode(
            Request(
                index=index,
                custom_id=f"row-{index}",
                url="/v1/completions",
                body={"prompt": sentence(rng, 40), "max_tokens": 16, "temperature": 0, "ignore_eos": True},
            )
        )
        for index in range(4 * info.max_num_seqs)
    ]
    replica.feed("all", lines, True)
    outcomes = [outcome for batch in replica.results("all", 256) for outcome in batch]
    replica.stop()
    assert sorted(outcome.index for outcome in outcomes) == list(range(len(lines)))
    assert not any(outcome.failed for outcome in outcomes)
    assert {outcome.completion_tokens for outcome in outcomes} == {16}
