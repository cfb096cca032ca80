"""The tuner inside vLLM's scheduler: it sets the scheduler's limits, and counts what the scheduler has done.

vLLM keeps two limits apart from those that it allocates for: ``max_num_active_seqs`` and
``max_num_scheduled_tokens`` of its engine arguments. The scheduler reads both in every step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dray.engine.tuning import BatchLimits, Tuned, Tuner, Tuning, candidates_of

_logger = logging.getLogger(__name__)
_LIMITS = ("max_num_active_reqs", "max_num_scheduled_tokens")  # of vLLM's scheduler

_asked: Tuning | None = None  # of the scheduler that this process is about to build
_tell: Callable[[Tuned], None] | None = None


@contextmanager
def asking(tuning: Tuning | None, tell: Callable[[Tuned], None] | None = None) -> Iterator[None]:
    """The scheduler that is built meanwhile finds its limits; ``tell`` hears of the choice.

    vLLM builds its scheduler itself, and what its configuration holds would be part of the key under which
    compiled kernels are kept.
    """
    global _asked, _tell
    _asked, _tell = tuning, tell
    try:
        yield
    finally:
        _asked, _tell = None, None


class SchedulerTuner:
    """Compares limits in a scheduler's steps until one is chosen, which then holds."""

    def __init__(self, tuner: Tuner, tell: Callable[[Tuned], None] | None) -> None:
        self._tuner = tuner
        self._tell = tell
        self._ended = 0  # sequences
        self._answered = 0  # of them, those whose length is known
        self._tokens = 0  # of these
        self._told = False
        self._idle = False

    @property
    def result(self) -> Tuned | None:
        """The choice, once it is made."""
        return self._tuner.result

    def before_step(self, scheduler: Any) -> None:
        """Set the limits of the next step."""
        if self._told:
            return
        self._tuner.step(
            time.monotonic(),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            progress=lambda: self._ended + sum(map(self._part, scheduler.running)),
            idle=self._idle,
        )
        self._idle = False
        limits = self._tuner.limits
        scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens = limits.seqs, limits.tokens
        if self._tuner.result is not None:
            self._told = True
            if self._tell is not None:
                self._tell(self._tuner.result)

    def after_step(self, scheduler: Any) -> None:
        """See whether the engine holds anything."""
        self._idle = not scheduler.running and not scheduler.waiting

    def ended(self, tokens: int | None) -> None:
        """A sequence is finished, with so many tokens of an answer, if that is known."""
        self._ended += 1
        if tokens is not None:
            self._answered += 1
            self._tokens += tokens

    def _part(self, request: Any) -> float:
        """How much of its answer a sequence has: of all that it may have, or of what others came to."""
        longest: int = request.max_tokens
        mean = self._tokens / self._answered if self._answered else longest
        there: int = request.num_computed_tokens - request.num_prompt_tokens
        return min(1.0, max(0, there) / max(1.0, min(mean, longest)))


def tuner_for(scheduler: Any) -> SchedulerTuner | None:
    """The tuner for a scheduler that is being built, where one is asked for."""
    if _asked is None:
        return None
    if not all(hasattr(scheduler, name) for name in _LIMITS):
        _logger.warning("--auto: this vLLM's limits cannot change while it runs; they stay as started")
        return None
    started = BatchLimits(*(getattr(scheduler, name) for name in _LIMITS))
    tokens = _asked.tokens and not _takes_whole(scheduler.scheduler_config)
    if not (tokens or _asked.seqs):
        _logger.warning("--auto: the tokens of a step have to stay as started; there is nothing to find out")
        return None
    candidates = candidates_of(started, seqs=_asked.seqs, tokens=tokens)
    return SchedulerTuner(Tuner(started, candidates, budget=_asked.budget), _tell)


def _takes_whole(config: Any) -> bool:
    """Whether a prompt, or an image in one, has to fit into a step: with fewer tokens it would wait for ever.

    BERT and its kin read a prompt at once. vLLM has seen to it that the longest one fits as it was started.
    """
    return config.disable_chunked_mm_input or not config.enable_chunked_prefill
