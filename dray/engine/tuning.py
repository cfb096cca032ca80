"""Find the limits under which an engine is fastest, while it answers a job's own rows.

vLLM can run fewer sequences, and compute fewer tokens in a step, than it was started for, and both limits
may change between two steps. So candidates are compared on one engine, without a second start: each holds
for a while (a *window*), the better half of them for another one, and so on until one is left (successive
halving: Jamieson and Talwalkar, "Non-stochastic best arm identification", 2016). The first round compares
sequences alone, the next one also tokens. Every row that runs meanwhile is a row of the job, and its answer
counts.

Progress is counted in sequences: finished ones, and of each that runs the part of its answer that is there. A
preempted sequence loses its part, as it has to be computed again. Sequences of a new limit often begin
together, so a window takes more of them than run at a time: all their phases are in it, prompts and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dray.errors import ConfigError

KEEPS = 1.02
"""A candidate has to be so many times as fast as the engine as started, to be chosen in its place."""

LEADS = 1.10
"""A candidate so many times as fast as the next one needs no further round."""

LEAST_SECONDS = 1.0  # of a window
SETTLE_BATCHES = 0.5  # after a change: sequences beyond the new limit finish, and new ones get out of step
WINDOW_BATCHES = 1.5
LEAST_BATCHES = 4  # of the engine as started: as much work as the first round takes
HOPELESS = 2.0
"""A candidate that takes so many times as long as the best one would is given up before its window ends."""

LEAST_SEQUENCES = 16  # of progress, in a window
_DIVISORS = (1, 2, 4, 8)
_TOKEN_DIVISORS = (1, 4)
_FEWEST_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a replica may find out: whether ``seqs`` and ``tokens`` may change, on so many sequences."""

    seqs: bool
    tokens: bool
    budget: int


@dataclass(frozen=True, slots=True, order=True)
class BatchLimits:
    """Sequences at a time, and tokens in a step."""

    seqs: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came of it. ``gain`` is the chosen limits' speed over that of the engine as started.

    ``limits`` are those that hold from now on, ``candidates`` how many were compared, in ``seconds`` and
    ``sequences`` of the engine's work.
    """

    limits: BatchLimits
    started: BatchLimits
    gain: float
    candidates: int
    seconds: float
    sequences: float

    @staticmethod
    def of(given: Mapping[str, Any]) -> Tuned:
        """What ``dataclasses.asdict`` made of one."""
        return Tuned(
            **{**given, "limits": BatchLimits(**given["limits"]), "started": BatchLimits(**given["started"])}
        )

    def as_dict(self) -> dict[str, Any]:
        """The choice as vLLM's engine arguments, which another run may be given, and what it was worth."""
        return {
            "max_num_active_seqs": self.limits.seqs,
            "max_num_scheduled_tokens": self.limits.tokens,
            "gain": round(self.gain, 3),
            "settings": self.candidates,
            "seconds": round(self.seconds, 2),
            "sequences": round(self.sequences),
        }

    @property
    def line(self) -> str:
        """The choice and its reason, for people."""
        seqs, tokens = self.limits.seqs, self.limits.tokens
        work = f"{self.sequences:.0f} sequences in {self.seconds:.1f} s"
        compared = f"{self.candidates} settings compared on {work}"
        if not self.candidates:
            return (
                f"keeps {seqs} sequences at a time and {tokens} tokens a step: too few rows to compare others"
            )
        if self.limits == self.started:
            return f"keeps {seqs} sequences at a time and {tokens} tokens a step: none was faster; {compared}"
        return (
            f"runs {seqs} sequences at a time (started for {self.started.seqs}) and {tokens} tokens a step "
            f"(started for {self.started.tokens}): {self.gain:.2f} times as fast; {compared}"
        )


_OF_SEQS = ("max_num_seqs", "max_num_active_seqs")
_OF_TOKENS = ("max_num_batched_tokens", "max_num_scheduled_tokens")
_SHARE = 2  # of a replica's rows, at most one in so many runs under settings that are compared
_FEWEST_ROWS = 2 * LEAST_SEQUENCES


def refuse_untunable(engine: str, arguments: Mapping[str, Any]) -> None:
    """Refuse ``--auto`` where there is nothing to find out.

    Raises:
        ConfigError: the engine has no such limits, or its arguments say them.
    """
    if engine != "vllm":
        raise ConfigError(f"--auto looks for settings of vLLM; the engine is {engine}")
    if _is_named(arguments, _OF_SEQS) and _is_named(arguments, _OF_TOKENS):
        named = [name for name in (*_OF_SEQS, *_OF_TOKENS) if name in arguments]
        raise ConfigError(f"--auto looks for what {' and '.join(named)} say already: leave one of them out")
    if arguments.get("scheduler_cls") is not None:
        raise ConfigError("--auto needs dray's scheduler: leave the engine argument scheduler_cls out")


def tuning_for(arguments: Mapping[str, Any], *, rows: int, replicas: int) -> Tuning | None:
    """What each of ``replicas`` may find out on its part of ``rows``; None where they are too few."""
    budget = rows // (_SHARE * max(1, replicas))
    if budget < _FEWEST_ROWS:
        return None
    return Tuning(
        seqs=not _is_named(arguments, _OF_SEQS), tokens=not _is_named(arguments, _OF_TOKENS), budget=budget
    )


def _is_named(arguments: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return any(arguments.get(name) is not None for name in names)


def candidates_of(started: BatchLimits, *, seqs: bool, tokens: bool) -> list[BatchLimits]:
    """What is compared for an engine that was started so; ``seqs`` and ``tokens`` say what may change."""
    found = {
        BatchLimits(max(1, started.seqs // divisor), max(1, started.tokens // step))
        for divisor in (_DIVISORS if seqs else (1,))
        for step in (_TOKEN_DIVISORS if tokens else (1,))
    }
    fits = {one for one in found if one.tokens >= max(one.seqs, _FEWEST_TOKENS)}
    return sorted(fits | {started})  # small ones first: they are the quickest to know


@dataclass(slots=True)
class _Window:
    """What a candidate did so far, over all its windows."""

    limits: BatchLimits
    done: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Sequences a second."""
        return self.done / self.seconds if self.seconds else 0.0


class Tuner:
    """Compares candidates in the engine's own steps; ``limits`` are those to heed in the next one.

    ``budget`` is how many sequences the comparison may take; the best so far is chosen when they are spent.
    Nothing here waits, or knows of vLLM.
    """

    def __init__(self, started: BatchLimits, candidates: list[BatchLimits], *, budget: int) -> None:
        self.limits = started
        self.result: Tuned | None = None
        self._started = started
        self._windows = {one: _Window(one) for one in candidates}
        self._budget = float(budget)
        first = [one for one in candidates if one.tokens == started.tokens]
        self._survivors = first if len(first) > 1 else list(candidates)
        self._later = [one for one in candidates if one not in self._survivors]
        self._left = list(self._survivors)  # of this round
        self._first: tuple[float, float] | None = None  # time and progress when tuning began
        self._changed = (0.0, 0.0)  # time and progress
        self._began: tuple[float, float] | None = None  # time and progress of this window
        self._starved = self._steps = 0
        if len(candidates) < 2 or budget < LEAST_BATCHES * started.seqs:
            self._end(0.0, 0.0)

    def step(
        self, now: float, *, running: int, waiting: int, progress: Callable[[], float], idle: bool = False
    ) -> None:
        """The engine is about to step: ``running`` sequences are in its batch, ``waiting`` could join it.

        ``now`` is monotonic seconds; ``progress`` counts sequences since the engine started. ``idle``: the
        engine held nothing for a while before.
        """
        if self.result is not None:
            return
        if self._first is None:
            self._first = (now, progress())
            self._turn_to(self._left[0], now, progress())
        elif idle:  # which is no candidate's fault
            self._turn_to(self.limits, now, progress())
        self._steps += 1
        self._starved += running < self.limits.seqs and not waiting
        if self._began is None:
            self._settle(now, running, progress)
        else:
            if now - self._began[0] >= LEAST_SECONDS:
                self._look(now, progress())
            if self._began is not None and self.result is None:
                self._give_up(now, progress)

    def _settle(self, now: float, running: int, progress: Callable[[], float]) -> None:
        if running > self.limits.seqs:  # those of the limits before have to end
            self._changed = (now, progress())
        elif progress() >= self._changed[1] + SETTLE_BATCHES * self.limits.seqs:
            self._began = (now, progress())
            self._starved = self._steps = 0
        else:
            self._give_up(now, progress)

    @property
    def _is_starved(self) -> bool:
        """Whether the rows ran short in most of the steps."""
        return self._starved * 2 > self._steps

    def _give_up(self, now: float, progress: Callable[[], float]) -> None:
        """Leave a candidate that is far behind the best one so far, though it has had rows enough."""
        if self._is_starved:
            return
        best = max(window.rate for window in self._windows.values())
        since, before = self._changed
        whole = (SETTLE_BATCHES + WINDOW_BATCHES) * self.limits.seqs
        if best and now - since > max(LEAST_SECONDS, HOPELESS * whole / best):
            self._note(now - since, progress() - before, now, progress())

    def _look(self, now: float, progress: float) -> None:
        """Perhaps the end of a window. One in which the rows ran short says nothing of its candidate."""
        assert self._began is not None
        began, before = self._began
        if progress - before < max(LEAST_SEQUENCES, WINDOW_BATCHES * self.limits.seqs):
            return
        if self._is_starved:
            self._turn_to(self.limits, now, progress)
        else:
            self._note(now - began, progress - before, now, progress)

    def _note(self, seconds: float, done: float, now: float, progress: float) -> None:
        """A window has ended: on to the next one, the next round, or the end."""
        assert self._first is not None
        window = self._windows[self.limits]
        window.done += done
        window.seconds += seconds
        self._left.pop(0)
        spent = progress - self._first[1]
        if not self._left:
            self._next_round()
        if len(self._survivors) == 1 or spent >= self._budget:
            self._end(now - self._first[0], spent)
        else:
            self._turn_to(self._left[0], now, progress)

    def _next_round(self) -> None:
        """Keep the better half, without those that are far behind; of the first one, other tokens come in."""
        rates = {one: self._windows[one].rate for one in self._survivors}
        ranked = sorted(rates, key=lambda one: rates[one], reverse=True)[: len(rates) // 2]
        kept = [one for one in ranked if LEADS * rates[one] > rates[ranked[0]]]
        seqs = {one.seqs for one in kept}
        self._survivors = sorted([*kept, *(one for one in self._later if one.seqs in seqs)])
        self._later = []
        self._left = list(self._survivors)

    def _turn_to(self, limits: BatchLimits, now: float, progress: float) -> None:
        self.limits, self._changed, self._began = limits, (now, progress), None
        self._starved = self._steps = 0

    def _end(self, seconds: float, sequences: float) -> None:
        known = [one for one in self._windows.values() if one.seconds]
        usual = self._windows.get(self._started)
        rate = usual.rate if usual is not None else 0.0
        best = max(known, key=lambda one: one.rate, default=None)
        gain = best.rate / rate if best is not None and rate else 1.0
        chosen = best.limits if best is not None and gain >= KEEPS else self._started
        self.limits = chosen
        self.result = Tuned(
            limits=chosen,
            started=self._started,
            gain=gain if chosen != self._started else 1.0,
            candidates=len(known),
            seconds=seconds,
            sequences=sequences,
        )
