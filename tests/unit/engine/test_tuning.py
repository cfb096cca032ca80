"""The tuner, on a pretended engine whose best limits are known."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.tuning import BatchLimits, Tuned, Tuner, Tuning, candidates_of, refuse_untunable, tuning_for
from dray.engine.vllm_adapter.core.tuned_scheduler import asking, tuner_for
from dray.errors import ConfigError

pytestmark = pytest.mark.unit

STARTED = BatchLimits(256, 8192)


@dataclass
class Machine:
    """Runs sequences of 100 prompt and about 40 output tokens; a step's seconds are a function of its batch.

    ``best`` is where the time of a step begins to grow faster than the batch, as a cache that overflows does.
    """

    best: int
    rng: random.Random
    rows: float = math.inf
    now: float = 0.0
    ended: int = 0
    running: list[list[float]] = field(default_factory=list)  # computed, whole
    idle: bool = False

    def run(self, tuner: Tuner, steps: int) -> None:
        """Step until the tuner has chosen, or for so many steps."""
        for _ in range(steps):
            waiting = self.rows - self.ended - len(self.running)
            tuner.step(
                self.now,
                running=len(self.running),
                waiting=int(min(waiting, 50)),
                progress=self.progress,
                idle=self.idle,
            )
            self.idle = False
            if tuner.result is not None:
                return
            self._step(tuner.limits)

    def progress(self) -> float:
        parts = (max(0.0, computed - 100) / 40 for computed, _ in self.running)
        return self.ended + sum(min(1.0, part) for part in parts)

    def _step(self, limits: BatchLimits) -> None:
        while len(self.running) < limits.seqs and self.ended + len(self.running) < self.rows:
            self.running.append([0.0, 100.0 + self.rng.randint(20, 60)])
        budget = limits.tokens
        for sequence in self.running:
            tokens = min(budget, 100 if not sequence[0] else 1)
            sequence[0] += tokens
            budget -= tokens
        seqs = len(self.running)
        slow = max(1.0, seqs / self.best) ** 2
        self.now += (0.01 + 0.0001 * seqs + 2e-6 * (limits.tokens - budget)) * slow
        self.ended += sum(computed >= whole for computed, whole in self.running)
        self.running = [one for one in self.running if one[0] < one[1]]


def _rate(best: int, limits: BatchLimits) -> float:
    """Sequences a second under fixed limits, in the long run."""
    machine = Machine(best, random.Random(5))
    for _ in range(1500):
        machine._step(limits)
    return machine.progress() / machine.now


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("best", [20, 64, 128, 1000])
def test_the_fastest_limits_are_found(best: int, seed: int) -> None:
    candidates = candidates_of(STARTED, seqs=True, tokens=True)
    tuner = Tuner(STARTED, candidates, budget=20_000)
    Machine(best, random.Random(seed)).run(tuner, 100_000)
    assert tuner.result is not None
    rates = {one: _rate(best, one) for one in candidates}
    assert rates[tuner.result.limits] >= 0.95 * max(rates.values())
    assert tuner.result.limits == tuner.limits
    if best == 20:
        assert tuner.result.limits.seqs < 256
        assert tuner.result.gain > 1.5


def test_an_engine_that_is_best_as_started_stays_so(seed: int) -> None:
    tuner = Tuner(STARTED, candidates_of(STARTED, seqs=True, tokens=False), budget=20_000)
    Machine(10_000, random.Random(seed)).run(tuner, 100_000)
    assert tuner.result is not None
    assert tuner.result.limits == STARTED
    assert tuner.result.gain == 1.0
    assert "none was faster" in tuner.result.line


def test_no_more_sequences_than_allowed_are_spent(seed: int) -> None:
    tuner = Tuner(STARTED, candidates_of(STARTED, seqs=True, tokens=True), budget=1030)
    machine = Machine(1000, random.Random(seed))
    machine.run(tuner, 100_000)
    assert tuner.result is not None
    assert 1030 <= tuner.result.sequences < 1030 + 2 * STARTED.seqs
    assert tuner.result.candidates < 8


def test_rows_that_run_out_choose_nothing(seed: int) -> None:
    """Windows in which the engine had too few rows say nothing of its limits."""
    tuner = Tuner(STARTED, candidates_of(STARTED, seqs=True, tokens=False), budget=20_000)
    Machine(64, random.Random(seed), rows=100).run(tuner, 3000)
    assert tuner.result is None


def test_a_pause_of_the_engine_is_no_candidates_fault(seed: int) -> None:
    """Rows come with pauses of ten seconds, in which the engine holds nothing."""
    tuner = Tuner(STARTED, candidates_of(STARTED, seqs=True, tokens=False), budget=20_000)
    machine = Machine(64, random.Random(seed))
    while tuner.result is None:
        machine.run(tuner, 400)
        machine.ended += len(machine.running)
        machine.running.clear()
        machine.now += 10.0
        machine.idle = True
    assert _rate(64, tuner.result.limits) >= 0.95 * _rate(64, BatchLimits(64, 8192))


@given(seqs=st.integers(1, 2048), tokens=st.integers(1, 32768), which=st.tuples(st.booleans(), st.booleans()))
def test_candidates_stay_within_what_the_engine_allocated_for(
    seqs: int, tokens: int, which: tuple[bool, bool]
) -> None:
    started = BatchLimits(seqs, tokens)
    found = candidates_of(started, seqs=which[0], tokens=which[1])
    assert started in found
    assert len(set(found)) == len(found) <= 8
    assert all(1 <= one.seqs <= seqs and 1 <= one.tokens <= tokens for one in found)
    assert which[0] or {one.seqs for one in found} == {seqs}
    assert which[1] or {one.tokens for one in found} == {tokens}


def test_too_few_rows_change_nothing() -> None:
    tuner = Tuner(STARTED, candidates_of(STARTED, seqs=True, tokens=True), budget=1000)
    assert tuner.result is not None
    assert tuner.result.limits == STARTED
    assert "too few rows" in tuner.result.line


def test_one_candidate_needs_no_window() -> None:
    tuner = Tuner(BatchLimits(1, 16), [BatchLimits(1, 16)], budget=100)
    assert tuner.result is not None
    assert tuner.result.limits == BatchLimits(1, 16)


def test_a_choice_survives_json() -> None:
    tuned = Tuned(
        limits=BatchLimits(32, 512), started=STARTED, gain=1.25, candidates=8, seconds=3.5, sequences=400.5
    )
    assert Tuned.of(orjson.loads(orjson.dumps(asdict(tuned)))) == tuned
    assert "1.25 times as fast" in tuned.line


def test_what_the_user_names_is_left() -> None:
    tuning = tuning_for({"max_num_seqs": 64}, rows=4000, replicas=2)
    assert tuning is not None
    assert (tuning.seqs, tuning.tokens, tuning.budget) == (False, True, 1000)
    assert tuning_for({}, rows=60, replicas=1) is None


@pytest.mark.parametrize(
    ("engine", "arguments", "says"),
    [
        ("simulated", {}, "settings of vLLM"),
        (
            "vllm",
            {"max_num_seqs": 8, "max_num_batched_tokens": 64},
            "max_num_seqs and max_num_batched_tokens",
        ),
        ("vllm", {"scheduler_cls": "mine.Scheduler"}, "scheduler_cls"),
    ],
)
def test_nothing_to_find_out_is_refused(engine: str, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        refuse_untunable(engine, arguments)


@pytest.mark.parametrize(("chunks", "whole_images"), [(True, False), (False, False), (True, True)])
def test_what_has_to_fit_into_a_step_does(chunks: bool, whole_images: bool) -> None:
    """vLLM never schedules a prompt that is longer than a step, where it does not cut prompts."""
    scheduler = SimpleNamespace(
        max_num_active_reqs=256,
        max_num_scheduled_tokens=8192,
        scheduler_config=SimpleNamespace(
            enable_chunked_prefill=chunks, disable_chunked_mm_input=whole_images
        ),
    )
    with asking(Tuning(seqs=True, tokens=True, budget=20_000)):
        found = tuner_for(scheduler)
    assert found is not None
    tokens = {one.tokens for one in found._tuner._windows}
    assert tokens == ({8192, 2048} if chunks and not whole_images else {8192})
    with asking(Tuning(seqs=False, tokens=True, budget=20_000)):
        assert (tuner_for(scheduler) is None) == (tokens == {8192})
