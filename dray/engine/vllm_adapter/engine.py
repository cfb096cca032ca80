"""vLLM behind dray's engine protocol: one LLMEngine, stepped by the loop; its core here, or in a process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from dray.engine.adapters import adapters_of
from dray.engine.grammars import GrammarPending
from dray.engine.model_folder import EngineModel
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.tuning import Tuned
from dray.engine.vllm_adapter.arguments import (
    engine_arguments,
    grammar_seconds,
    prepare_environment,
    refused_arguments,
    runs_eagerly,
)
from dray.engine.vllm_adapter.core_apart import CoreLine, CoreProcess, running_in
from dray.engine.vllm_adapter.core_choice import core_wanted, runs_apart
from dray.engine.vllm_adapter.described import config_of, device_name
from dray.engine.vllm_adapter.gpu_turn import turn_on
from dray.engine.vllm_adapter.images import ImageSettings
from dray.engine.vllm_adapter.imports import import_vllm
from dray.engine.vllm_adapter.rank_process import ranks_end_with_this_process
from dray.engine.vllm_adapter.rendering import Rendering, RowsRead
from dray.errors import EngineDeadError, RequestRefused
from dray.machine import processor_name
from dray.requests.model import Outcome, Request
from dray.weights.loading.ranks import LoadTimes, ranks_heard

logger = logging.getLogger(__name__)

_MODULES = (
    "vllm.v1.engine.llm_engine",
    "dray.engine.vllm_adapter.client",
    "dray.engine.vllm_adapter.detokenizer",
    "dray.engine.vllm_adapter.scheduler",
    "dray.engine.vllm_adapter.serving",
)
_NOTHING_TO_COMPUTE = 0.002  # seconds until vLLM is asked again, where all that it holds waits
_VERDICT_SECONDS = 0.05  # for a grammar to be judged, before aborts and new rows are looked at again


@dataclass(slots=True)
class _Flight:
    """One request on its way through vLLM's serving layer."""

    key: int
    request: Request
    coroutine: Coroutine[Any, Any, Any]
    tickets: list[Any]
    admitted: float
    awaiting: Any = None


class VllmEngine:
    """Runs OpenAI request bodies through vLLM.

    The heavy imports happen here, in the constructor: nothing else in dray imports vLLM.

    Raises:
        ConfigError: vLLM is not installed, or its arguments cannot be used.
    """

    def __init__(self, spec: EngineSpec) -> None:
        began = time.monotonic()
        self._processor = processor_name()  # vLLM binds its threads to cores
        self._images = ImageSettings.of(spec, os.sched_getaffinity(0))
        prepare_environment(spec)
        # Refused before vLLM and the model are there.
        self._adapters = adapters_of(spec.arguments, spec.model)
        eagerly = runs_eagerly(spec, cpu=True)
        self._core = (
            CoreProcess(eager_on_cpu=eagerly, tuning=spec.tuning) if runs_apart(spec.arguments) else None
        )
        try:
            with EngineModel(spec) as model:
                cpu = import_vllm(_MODULES, eager_on_cpu=eagerly)
                self._settle_core(spec, cpu=cpu)
                imported = time.monotonic()
                arguments = engine_arguments(spec, model.arguments(), self._adapters, cpu=cpu)
                fetched = time.monotonic()
                self.loads = self._build(spec, arguments)
                seconds = {"import": imported - began, "wait": fetched - imported}
                seconds["engine"] = time.monotonic() - fetched
                self.info = self._described(seconds, model.span())
        except BaseException:
            self._end_core()
            raise

    def _settle_core(self, spec: EngineSpec, *, cpu: bool) -> None:
        """Now that vLLM has said what it runs on: where the core stays."""
        if cpu and core_wanted(spec.arguments) is None:
            self._end_core()
        place = "this process" if self._core is None else f"a process of its own ({self._core.pid})"
        logger.info("the engine's core runs in %s", place)

    def _build(self, spec: EngineSpec, arguments: dict[str, Any]) -> list[LoadTimes]:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext

        from dray.engine.vllm_adapter.client import StepClient, drive_without_event_loop
        from dray.engine.vllm_adapter.detokenizer import decode_at_the_end
        from dray.engine.vllm_adapter.grammars import grammars_of
        from dray.engine.vllm_adapter.lora import load_adapters, refuse_model_without_lora
        from dray.engine.vllm_adapter.scheduler import choose
        from dray.engine.vllm_adapter.serving import serving_class, serving_for
        from dray.weights.loading.vllm_loader import register

        register()
        ranks_end_with_this_process()
        with refused_arguments():
            # The batch sizes that vLLM itself takes offline: twice those of its server.
            self._config = EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS)
            serving_class(spec).check(spec, self._config)  # before the weights are loaded
            refuse_model_without_lora(spec, self._config)
        choose(self._config)
        with ranks_heard() as ranks, turn_on(spec.gpus):
            self._engine = self._started(spec, log_stats=not arguments["disable_log_stats"])
        self._line = CoreLine(self._engine.engine_core, self._core) if self._core is not None else None
        self._client = StepClient(self._engine, self._images)
        if spec.kind.engine.answers_freely:
            tokenizer = self._client.input_processor.tokenizer
            self._client.grammars = grammars_of(self._config, tokenizer, grammar_seconds(spec))
        drive_without_event_loop(self._client)
        decode_at_the_end()
        self._serve = serving_for(spec, self._client, load_adapters(self._engine, self._adapters))
        self._reading = RowsRead(self.wake)
        self._folder = arguments["model"]
        self._flights: dict[int, _Flight] = {}
        self._by_ticket: dict[str, _Flight] = {}
        self._parked: dict[bytes, list[_Flight]] = {}  # by the grammar that they wait for
        self._judged = 0  # grammars
        self._finished: list[tuple[int, Outcome]] = []
        return ranks.loads

    def _started(self, spec: EngineSpec, *, log_stats: bool) -> Any:
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        from dray.engine.vllm_adapter.tuned_scheduler import asking

        with running_in(self._core) if self._core is not None else asking(spec.tuning):
            return LLMEngine(
                self._config,
                executor_class=Executor.get_class(self._config),
                log_stats=log_stats,
                usage_context=UsageContext.LLM_CLASS,
                multiprocess_mode=self._core is not None,
            )

    def _described(self, seconds: dict[str, float], span: tuple[float, float] | None) -> EngineInfo:
        import vllm

        if self.loads:  # of the slowest rank, in parts that add up to the whole
            load = max(self.loads, key=lambda one: one.seconds)
            seconds["wait"] += load.waited
            seconds["engine"] -= load.seconds
            seconds["load"] = load.seconds - load.waited
        return EngineInfo(
            engine="vllm",
            version=vllm.__version__,
            model=self._serve.model_name,
            max_num_seqs=self._config.scheduler_config.max_num_seqs,
            max_model_len=self._config.model_config.max_model_len,
            timeline={part: value for part, value in seconds.items() if part != "wait" or span is not None},
            weights=span,
            device=device_name(self._config, self._processor),
            config=config_of(self._folder),
            max_num_batched_tokens=self._config.scheduler_config.max_num_batched_tokens,
        )

    def submit(self, key: int, request: Request) -> None:
        """Read the body, apply the template, and put the prompts into the engine."""
        self._advance(_Flight(key, request, self._serve.start(request), [], time.monotonic()))

    def step(self) -> list[tuple[int, Outcome]]:
        """One iteration of the engine; rows whose last output came are finished."""
        if self._parked:
            self._unpark()
        if self._reading.count:
            for flight in self._reading.arrived(0 if self._by_ticket else _VERDICT_SECONDS):
                self._relaunch(flight)
        if self._by_ticket:
            for output in self._stepped():
                if output.finished:
                    self._land(output)
        finished, self._finished = self._finished, []
        return finished

    def _stepped(self) -> list[Any]:
        before = self._client.progress
        try:
            outputs: list[Any] = self._engine.step()
            while self._line is not None and self._line.more:
                outputs += self._engine.step()
        except Exception as error:
            raise self._death(error) from error
        if self._line is None and self._client.progress == before:
            time.sleep(_NOTHING_TO_COMPUTE)
        return outputs

    def _death(self, error: Exception) -> EngineDeadError:
        if self._line is not None and self._line.ended_by(error):
            return self._line.death()
        return EngineDeadError(f"{type(error).__name__} in the engine's step")

    def wake(self) -> None:
        """Have a step return that waits for the core."""
        if self._line is not None:
            self._line.wake()

    def check(self) -> None:
        """See whether the core lives, while nothing is asked of it."""
        if self._line is not None:
            self._line.check()

    def produced(self) -> int:
        """What vLLM computed: a step in which all requests wait, for their grammars say, does not count.

        While a grammar is judged, which has a limit of its own, every second counts.
        """
        judging = int(time.monotonic()) if self._parked else 0
        return self._client.progress + self._judged + judging + self._reading.read

    def tuned(self) -> Tuned | None:
        """The limits that the scheduler found."""
        if self._core is not None:
            return self._core.tuned
        scheduler = self._engine.engine_core.engine_core.scheduler
        tuner = getattr(scheduler, "tuner", None)  # a scheduler of the user's has none
        found: Tuned | None = tuner.result if tuner is not None else None
        return found

    def abort(self, keys: Iterable[int]) -> None:
        """Take requests out of the engine."""
        for key in keys:
            flight = self._flights.get(key)
            if flight is not None:
                self._forget(flight)
                flight.coroutine.close()
                if isinstance(flight.awaiting, Rendering):
                    flight.awaiting.cancel()

    def close(self) -> None:
        """Release the engine's memory."""
        if self._client.grammars is not None:
            self._client.grammars.close()
        self._serve.close()
        self._engine.engine_core.shutdown()
        self._end_core()

    def _end_core(self) -> None:
        if self._core is not None:
            self._core.end()
            self._core = None

    # -- flights ----------------------------------------------------------------------------

    def _advance(self, flight: _Flight) -> None:
        """Run the coroutine until it waits for the engine again, for the verdict on its grammar, or ends.

        What it puts into the engine leaves it again where this raises.

        Raises:
            RequestRefused: the request cannot be honoured.
        """
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        opened: list[Any] = []
        self._client.opened = opened
        try:
            self._run_on(flight)
        except VllmDeadError as error:
            raise self._death(error) from error
        except BaseException:
            self._abort_tickets(opened)
            raise
        if self._flights.get(flight.key) is flight:
            flight.tickets += opened
            for ticket in opened:
                self._by_ticket[ticket.engine_id] = flight

    def _run_on(self, flight: _Flight) -> None:
        from dray.engine.vllm_adapter.client import Ticket
        from dray.engine.vllm_adapter.errors import is_the_engines, refusal_of

        try:
            awaited = flight.coroutine.send(None)
        except StopIteration as stop:
            self._complete(flight, stop.value)
            return
        except GrammarPending as pending:
            self._flights[flight.key] = flight
            self._parked.setdefault(pending.key, []).append(flight)
            return
        except Exception as error:  # the seam: everything a body can provoke is a verdict on its row
            if is_the_engines(error):
                raise
            raise self._named(refusal_of(error, flight.request.body)) from None
        flight.awaiting = awaited
        if isinstance(awaited, Rendering):
            self._reading.add(flight, awaited)
        elif not isinstance(awaited, Ticket):
            flight.coroutine.close()
            raise RequestRefused("unsupported", "this combination of fields is not supported in a batch")
        self._flights[flight.key] = flight

    def _unpark(self) -> None:
        """Start again the rows whose grammars have a verdict; waits briefly where there is no other work."""
        assert self._client.grammars is not None
        for key in self._client.grammars.arrived(0 if self._by_ticket else _VERDICT_SECONDS):
            self._judged += 1
            for flight in self._parked.pop(key, []):
                if self._flights.get(flight.key) is flight:
                    flight.coroutine = self._serve.start(flight.request)
                    self._relaunch(flight)

    def _relaunch(self, flight: _Flight) -> None:
        """Go on with a row that waited for a verdict, or for its images, unless it was aborted meanwhile."""
        if self._flights.pop(flight.key, None) is not flight:
            return
        try:
            self._advance(flight)
        except RequestRefused as refusal:
            self._finished.append((flight.key, self._refused(flight, refusal)))

    def _complete(self, flight: _Flight, answer: Any) -> None:
        from dray.engine.vllm_adapter.errors import is_the_engines, refusal_of_answer

        try:
            outcome = self._outcome(flight, answer)
        except Exception as error:  # the model's text is at fault, not the engine
            if is_the_engines(error):
                raise
            raise refusal_of_answer(error) from None
        self._forget(flight)
        self._finished.append((flight.key, outcome))

    def _land(self, output: Any) -> None:
        ticket = self._client.tickets.pop(output.request_id, None)
        flight = self._by_ticket.pop(output.request_id, None)
        if ticket is None or flight is None:
            return
        ticket.output = output
        if flight.awaiting is not ticket:
            return
        try:
            self._advance(flight)
        except RequestRefused as refusal:
            self._forget(flight)
            self._finished.append((flight.key, self._refused(flight, refusal)))

    def _outcome(self, flight: _Flight, answer: Any) -> Outcome:
        """The terminal row of a request whose coroutine ended with ``answer``."""
        request = flight.request
        outputs = [ticket.output for ticket in flight.tickets]
        queue, first = flight.tickets[0].waits.seconds() if flight.tickets else (0.0, 0.0)
        return Outcome(
            index=request.index,
            custom_id=request.custom_id,
            response=self._serve.response(request, answer),
            prompt_tokens=sum(len(output.prompt_token_ids or ()) for output in outputs),
            cached_tokens=sum(output.num_cached_tokens or 0 for output in outputs),
            completion_tokens=sum(_generated(output) for output in outputs),
            queue_seconds=queue,
            first_token_seconds=first,
            total_seconds=time.monotonic() - flight.admitted,
        )

    def _named(self, refusal: RequestRefused) -> RequestRefused:
        """The refusal with the model's name for its folder, which is another one on every machine."""
        message = refusal.message.replace(self._folder, self.info.model)
        return RequestRefused(refusal.code, message, param=refusal.param)

    def _refused(self, flight: _Flight, refusal: RequestRefused) -> Outcome:
        return flight.request.refused(refusal.code, refusal.message)

    def _forget(self, flight: _Flight) -> None:
        self._flights.pop(flight.key, None)
        self._abort_tickets([ticket for ticket in flight.tickets if ticket.output is None])

    def _abort_tickets(self, tickets: list[Any]) -> None:
        if not tickets:
            return
        for ticket in tickets:
            self._by_ticket.pop(ticket.engine_id, None)
        self._client.abort(tickets)


def _generated(output: Any) -> int:
    parts = getattr(output, "outputs", None)
    return sum(len(part.token_ids) for part in parts) if isinstance(parts, list) else 0
