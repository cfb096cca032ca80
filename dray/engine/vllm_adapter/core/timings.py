"""When a request was queued, scheduled, and gave its first token: seen as the core's outputs pass by.

vLLM's own statistics per request cost 3% of the engine's thread with a small model, because they look at
every request in every step. What a batch wants to know happens once for each request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.engine import EngineCoreEventType

from dray.engine.vllm_adapter.core.scheduler import tells_beats


@dataclass(slots=True)
class Waits:
    """Moments of vLLM's monotonic clock, in seconds; 0 is unknown."""

    queued: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0

    def seconds(self) -> tuple[float, float]:
        """Seconds from the queue until scheduled, and until the first token came; 0 where unknown."""
        if not self.queued:
            return 0.0, 0.0
        return max(self.scheduled - self.queued, 0.0), max(self.first_token - self.queued, 0.0)


class Timings:
    """Listens to the core of one engine.

    ``progress`` counts the steps in which the model computed something, and the outputs that came of them: a
    step may find nothing to compute, where all that the engine holds waits for something else.
    """

    def __init__(self, engine: Any) -> None:
        self.progress = 0
        self._waiting: dict[str, Waits] = {}
        self._cache_usage = 0.0
        self._beats = tells_beats(engine.vllm_config)
        self._count_steps(engine.engine_core)
        self._get_output = engine.engine_core.get_output
        engine.engine_core.get_output = self._listen
        # The core still reports events; vLLM no longer counts every request in every step.
        engine.log_stats = False
        engine.output_processor.log_stats = False
        engine.logger_manager = None

    def expect(self, core_id: str) -> Waits:
        """Follow the request of this id, or the first of its samples, until its first token."""
        waits = self._waiting[core_id] = Waits()
        return waits

    def forget(self, core_id: str) -> None:
        """The request is gone."""
        self._waiting.pop(core_id, None)

    def _listen(self) -> Any:
        outputs = self._get_output()
        self.progress += len(outputs.outputs) + self._prefilled(outputs.scheduler_stats)
        if self._waiting:
            for output in outputs.outputs:
                waits = self._waiting.get(output.request_id)
                if waits is not None:
                    self._note(waits, output, outputs.timestamp)
        return outputs

    def _count_steps(self, client: Any) -> None:
        core = getattr(client, "engine_core", None)
        if core is None:
            return  # it runs in a process of its own
        post_step = core.post_step

        def counted(model_executed: bool) -> None:
            self.progress += model_executed
            post_step(model_executed)

        core.post_step = counted

    def _prefilled(self, stats: Any) -> bool:
        """Whether a core elsewhere computed what gives no output yet, of a long prompt for instance.

        dray's scheduler says so by its beat, which has statistics; what the front itself makes has none. With
        a scheduler of the user's, the cache fills or empties.
        """
        if stats is None or (stats.kv_cache_usage == self._cache_usage and not self._beats):
            return False
        self._cache_usage = stats.kv_cache_usage
        return True

    def _note(self, waits: Waits, output: Any, now: float) -> None:
        for event in output.events or ():
            if event.type == EngineCoreEventType.QUEUED:
                waits.queued = waits.queued or event.timestamp
            elif event.type == EngineCoreEventType.SCHEDULED:
                waits.scheduled = waits.scheduled or event.timestamp
        if output.new_token_ids or output.pooling_output is not None:
            waits.first_token = now
            del self._waiting[output.request_id]
