"""vLLM's limits change while it runs, in both arrangements of its core, and no answer changes with them."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dray.engine.replica import Replica, build_engine
from dray.engine.tuning import BatchLimits, Tuned, Tuning
from dray.requests.model import Outcome
from tests.support.engines import generation_spec, lines

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]

SEQS, TOKENS, ROWS = 16, 2048, 600
AGAIN = 5  # times that the rows are run again, on a machine with other work


def _texts(
    model: Path, core: str, tuning: Tuning | None
) -> tuple[list[str], Tuned | None, BatchLimits | None]:
    """The answers to the rows, what was found, and the limits that the scheduler has at the end."""
    from dataclasses import replace

    spec = generation_spec(model, engine_core=core, max_num_seqs=SEQS, max_num_batched_tokens=TOKENS)
    engines = []

    def build(spec: object) -> object:
        engines.append(build_engine(spec))  # type: ignore[arg-type]
        return engines[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dray.engine.replica.build_engine", build)
        replica = Replica("tuned", replace(spec, tuning=tuning), exit_when_dead=False)
        replica.ready()
    bodies = [{"prompt": f"row {number} of many", "max_tokens": 3 + number % 5} for number in range(ROWS)]
    try:
        rows = lines([{**body, "temperature": 0} for body in bodies])
        found = _answered(replica, "s", rows)
        for again in range(AGAIN if tuning else 0):  # a core that found too few rows waiting compares on more
            if replica.status().stats.tuned is None:
                assert _answered(replica, f"s{again}", rows).keys() == found.keys()
        held = None
        if core == "inside":
            scheduler = engines[0]._engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
            held = BatchLimits(scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens)
        tuned = replica.status().stats.tuned
    finally:
        replica.stop()
    answers = [orjson.loads(found[index].response or b"") for index in range(ROWS)]
    return [one["choices"][0]["text"] for one in answers], tuned, held


def _answered(replica: Replica, session: str, rows: list[bytes]) -> dict[int, Outcome]:
    replica.feed(session, rows, last=True)
    return {row.index: row for batch in replica.results(session, 100) for row in batch}


@pytest.fixture(scope="module")
def untuned(lively_model: Path) -> list[str]:
    return _texts(lively_model, "inside", None)[0]


@pytest.mark.parametrize("core", ["inside", "apart"])
def test_a_replica_finds_its_limits_on_rows_of_the_job(
    lively_model: Path, untuned: list[str], core: str
) -> None:
    tuning = Tuning(seqs=True, tokens=True, budget=ROWS // 2)
    texts, tuned, held = _texts(lively_model, core, tuning)
    assert texts == untuned
    assert tuned is not None
    assert tuned.started == BatchLimits(SEQS, TOKENS)
    assert tuned.limits.seqs <= SEQS
    assert tuned.limits.tokens in (TOKENS, TOKENS // 4)
    assert tuned.candidates >= 2
    assert ROWS / 4 < tuned.sequences < (1 + AGAIN) * ROWS
    assert held in (None, tuned.limits)
