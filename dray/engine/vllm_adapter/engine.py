"""vLLM behind dray's engine protocol: one LLMEngine, stepped by the loop; its core here, or in a process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from dray.engine.adapters import adapters_of
from dray.engine.log_records import keep_on
from dray.engine.model_folder import EngineModel
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.tuning import BatchLimits, Tuned
from dray.engine.vllm_adapter.arguments import (
    eager_on_cpu,
    engine_arguments,
    grammar_seconds,
    prepare_environment,
    refused_arguments,
)
from dray.engine.vllm_adapter.core.apart import CoreLine, CoreProcess, running_in
from dray.engine.vllm_adapter.core.choice import core_wanted, runs_apart
from dray.engine.vllm_adapter.core.rank_process import ranks_end_with_this_process
from dray.engine.vllm_adapter.described import config_of, device_name
from dray.engine.vllm_adapter.flights import Flights
from dray.engine.vllm_adapter.full_step import take_full_step
from dray.engine.vllm_adapter.gpu_turn import shares_gpu, turn_on
from dray.engine.vllm_adapter.imports import import_vllm
from dray.engine.vllm_adapter.media.images import ImageSettings
from dray.engine.vllm_adapter.prompt_day import show_day
from dray.errors import EngineDeadError
from dray.machine import processor_name
from dray.requests.model import Outcome, Request
from dray.weights.loading.ranks import ranks_heard

logger = logging.getLogger(__name__)

_MODULES = (
    "vllm.v1.engine.llm_engine",
    "dray.engine.vllm_adapter.client",
    "dray.engine.vllm_adapter.detokenizer",
    "dray.engine.vllm_adapter.core.scheduler",
    "dray.engine.vllm_adapter.kinds.serving",
)
_NOTHING_TO_COMPUTE = 0.002  # seconds until vLLM is asked again, where all that it holds waits


class VllmEngine:
    """Runs OpenAI request bodies through vLLM.

    The heavy imports happen here, in the constructor: nothing else in dray imports vLLM. ``tell_limits``
    gets the size of its batches before its ranks start: those on other nodes need the same.

    Raises:
        ConfigError: vLLM is not installed, or its arguments cannot be used.
    """

    def __init__(self, spec: EngineSpec, tell_limits: Callable[[BatchLimits], None] | None = None) -> None:
        began = time.monotonic()
        self._processor = processor_name()  # vLLM binds its threads to cores
        self._tell_limits = tell_limits
        self._images = ImageSettings.of(spec, os.sched_getaffinity(0))
        prepare_environment(spec)
        # Refused before vLLM and the model are there.
        self._adapters = adapters_of(spec.arguments, spec.model)
        eagerly = eager_on_cpu(spec)
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
                self._build(spec, arguments)
                self.loads = self._ranks.loads
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

    def _build(self, spec: EngineSpec, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext

        from dray.engine.vllm_adapter.client import StepClient, drive_without_event_loop
        from dray.engine.vllm_adapter.core.scheduler import choose
        from dray.engine.vllm_adapter.detokenizer import decode_at_the_end
        from dray.engine.vllm_adapter.grammars import grammars_of
        from dray.engine.vllm_adapter.kinds.serving import serving_class, serving_for
        from dray.engine.vllm_adapter.lora import load_adapters, refuse_model_without_lora
        from dray.weights.loading.vllm_loader import register

        if spec.prompt_day is not None:
            show_day(spec.prompt_day)
        register()
        ranks_end_with_this_process()
        with refused_arguments():
            # The batch sizes that vLLM itself takes offline: twice those of its server.
            self._config = EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS)
            serving_class(spec).check(spec, self._config)  # before the weights are loaded
            refuse_model_without_lora(spec, self._config)
        keep_on()  # vLLM has set up its log by now
        choose(self._config)
        if self._tell_limits is not None:
            scheduled = self._config.scheduler_config
            self._tell_limits(BatchLimits(scheduled.max_num_seqs, scheduled.max_num_batched_tokens))
        with ranks_heard() as self._ranks, turn_on(spec.gpus):
            self._engine = self._started(spec, log_stats=not arguments["disable_log_stats"])
            self._line = CoreLine(self._engine.engine_core, self._core) if self._core is not None else None
            if shares_gpu(spec.gpus) and spec.tuning is None:  # a tuner's first steps are not full
                self._take_full_step()
        self._client = StepClient(self._engine, self._images)
        if spec.kind.engine.answers_freely:
            tokenizer = self._client.input_processor.tokenizer
            self._client.grammars = grammars_of(self._config, tokenizer, grammar_seconds(spec))
        drive_without_event_loop(self._client)
        decode_at_the_end()
        self._serve = serving_for(spec, self._client, load_adapters(self._engine, self._adapters))
        self._folder = arguments["model"]
        self._flights = Flights(self._client, self._serve, self._folder, self._death, self.wake)

    def _started(self, spec: EngineSpec, *, log_stats: bool) -> Any:
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        from dray.engine.vllm_adapter.core.tuned_scheduler import asking

        with running_in(self._core) if self._core is not None else asking(spec.tuning):
            return LLMEngine(
                self._config,
                executor_class=Executor.get_class(self._config),
                log_stats=log_stats,
                usage_context=UsageContext.LLM_CLASS,
                multiprocess_mode=self._core is not None,
            )

    def _take_full_step(self) -> None:
        """What its steps need of the GPU's memory it has before the next engine on it measures."""
        try:
            take_full_step(self._engine)
        except Exception as error:
            raise self._death(error) from error

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
        self._flights.begin(key, request)

    def step(self) -> list[tuple[int, Outcome]]:
        """One iteration of the engine; rows whose last output came are finished."""
        self._flights.go_on()
        if self._flights.in_engine:
            for output in self._stepped():
                if output.finished:
                    self._flights.land(output)
        return self._flights.take_finished()

    def _stepped(self) -> list[Any]:
        before = self._client.progress
        try:
            outputs: list[Any] = self._engine.step()
            while self._line is not None and self._line.more:
                outputs += self._engine.step()
        except Exception as error:
            raise self._death(error) from error
        if self._line is not None and not outputs and (death := self._ranks.death()) is not None:
            raise death  # the core itself waits for the other ranks
        if self._line is None and self._client.progress == before:
            time.sleep(_NOTHING_TO_COMPUTE)
        return outputs

    def _death(self, error: Exception) -> EngineDeadError:
        if (death := self._ranks.death()) is not None:
            return death
        if self._line is not None and self._line.ended_by(error):
            return self._line.death()
        return EngineDeadError(f"{type(error).__name__} in the engine's step")

    def wake(self) -> None:
        """Interrupt a step that waits for the core."""
        if self._line is not None:
            self._line.wake()

    def check(self) -> None:
        """See whether the core lives, while nothing is asked of it."""
        if self._line is not None:
            self._line.check()

    def produced(self) -> int:
        """What vLLM computed: a step in which all requests wait, for their grammars say, does not count."""
        return self._client.progress + self._flights.moved()

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
        self._flights.abort(keys)

    def close(self) -> None:
        """Release the engine's memory."""
        if self._client.grammars is not None:
            self._client.grammars.close()
        self._serve.close()
        self._engine.engine_core.shutdown()
        self._end_core()
        self._ranks.close()

    def _end_core(self) -> None:
        if self._core is not None:
            self._core.end()
            self._core = None
