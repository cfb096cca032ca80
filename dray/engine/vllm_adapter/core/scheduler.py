"""vLLM's scheduler, telling the front of a request twice: at its first token, and at its end.

vLLM tells it after every step, for answers that are streamed. A batch is not: reading 512 outputs a hundred
times a second takes more of the front's time than all that it does once for a row.

Where the job asks for it, the scheduler also looks for the limits under which the engine is fastest
(:mod:`dray.engine.tuning`).
"""

from __future__ import annotations

import logging
import time
from typing import Any

from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats

from dray.engine.vllm_adapter.core.tuned_scheduler import SchedulerTuner, tuner_for

BEAT_SECONDS = 0.25
"""How often a core that computes says so, where no request begins or ends."""
_FRONT = 0  # the index of a core's client; there is one

# vLLM warns its user that this class is not its own. A level would not last: vLLM configures logging again.
logging.getLogger("vllm.config.scheduler").addFilter(lambda record: "custom scheduler" not in str(record.msg))
# Of a step that fails vLLM logs what was to be computed, with the stop texts and schemas of the rows.
logging.getLogger("vllm.logging_utils.dump_input").addFilter(
    lambda record: "scheduler output" not in str(record.msg)
)


class _Whole:
    """Holds back what is neither the first nor the last output of a request."""

    requests: dict[str, Any]
    aux_output_connector: Any
    return_sampling_mask: bool

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._whole: dict[str, _Held] = {}
        self._said = 0.0
        self.tuner: SchedulerTuner | None = tuner_for(self)

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        """vLLM's, under the limits that hold now."""
        if self.tuner is not None:
            self.tuner.before_step(self)
        return super().schedule(*arguments, **options)  # type: ignore[misc]

    def add_request(self, request: Any) -> None:
        """vLLM's; notes whether the request's outputs may be held back."""
        super().add_request(request)  # type: ignore[misc]
        if self.aux_output_connector is None and not self.return_sampling_mask and _is_plain(request):
            self._whole[request.request_id] = _Held(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        """vLLM's, for requests that are aborted."""
        ended = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        for request in ended:
            self._whole.pop(request.request_id, None)
        return ended

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        """vLLM's, without the outputs that are held back. What is left of no use is not sent."""
        updates: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        for update in updates.values():
            update.outputs = [output for output in update.outputs if self._passes(output)]
        if self.tuner is not None:
            self.tuner.after_step(self)
        computed = scheduler_output.total_num_scheduled_tokens > 0
        if computed and not updates:  # vLLM has nothing to say of this step, but a beat may be due
            updates = {_FRONT: EngineCoreOutputs()}
        return {client: update for client, update in updates.items() if self._is_news(update, computed)}

    def _passes(self, output: Any) -> bool:
        held = self._whole.get(output.request_id)
        if self.tuner is not None and output.finish_reason is not None:
            self.tuner.ended(None if held is None else held.request.num_output_tokens)
        if held is None:
            return True
        if output.finish_reason is not None:
            del self._whole[output.request_id]
            output.new_token_ids = list(held.request.output_token_ids[held.told :])
            return True
        first, held.told = not held.told, held.told or len(output.new_token_ids)
        return first

    def _is_news(self, update: Any, computed: bool) -> bool:
        now = time.monotonic()
        news = bool(update.outputs or update.finished_requests)
        if not news and not (computed and now - self._said >= BEAT_SECONDS):
            return False
        self._said = now
        if not news and update.scheduler_stats is None:
            update.scheduler_stats = (
                SchedulerStats()
            )  # marks a beat, where vLLM was told to keep no statistics
        return True


class _Held:
    """A request, and how many of its tokens the front was told."""

    __slots__ = ("request", "told")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.told = 0


def _is_plain(request: Any) -> bool:
    """Whether the front needs nothing of a request but its tokens, and these at the end.

    A stop string is found in the text, which the front makes; log probabilities come with each step.
    """
    params = request.sampling_params
    return (
        params is not None
        and params.output_kind is RequestOutputKind.FINAL_ONLY
        and not params.stop
        and params.num_logprobs is None
        and params.prompt_logprobs is None
    )


class WholeScheduler(_Whole, Scheduler):  # type: ignore[misc]  # vLLM is untyped here
    """The scheduler of engines whose device waits while the next step is scheduled."""


class WholeAsyncScheduler(_Whole, AsyncScheduler):  # type: ignore[misc]
    """The scheduler of engines that schedule the next step while this one is computed."""


def choose(config: Any) -> None:
    """Let an engine of this configuration tell whole answers, unless its user chose a scheduler."""
    scheduling = config.scheduler_config
    if scheduling.scheduler_cls is None:
        chosen = WholeAsyncScheduler if scheduling.async_scheduling else WholeScheduler
        scheduling.scheduler_cls = chosen


def tells_beats(config: Any) -> bool:
    """Whether the core of this configuration tells only of steps that computed something."""
    chosen = config.scheduler_config.scheduler_cls
    return isinstance(chosen, type) and issubclass(chosen, _Whole)
