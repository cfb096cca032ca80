"""A vLLM executor whose device is a clock: what the host costs a GPU can be measured without one.

A step takes `PRETENDED_STEP_MS` milliseconds and `PRETENDED_PREFILL_US` microseconds for each prompt token in
it, and uses no core meanwhile. Scheduler, tokenizer, detokenizer and serving classes are vLLM's own. As on
GPUs, vLLM schedules the next step while this one runs. The tokens say nothing: they follow from the place in
the batch.

    engine argument distributed_executor_backend="tests.benchmarks.pretended_device.PretendedDevice"
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from typing import Any

from vllm.platforms.cpu import CpuPlatform
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

NAME = f"{__name__}.PretendedDevice"
STEP_VARIABLE, PREFILL_VARIABLE = "PRETENDED_STEP_MS", "PRETENDED_PREFILL_US"
_LETTER_A, _LETTERS = 97, 20  # of the tiny model's vocabulary, which has a token for each byte


def _schedule_ahead() -> None:
    """Let vLLM schedule ahead of the device on this platform, where its own executors cannot."""
    checked = CpuPlatform.check_and_update_config.__func__

    def check(cls: type, config: Any) -> None:
        checked(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check)


_schedule_ahead()


class _AtTime(Future):  # type: ignore[type-arg]  # a plain class in vLLM's signatures too
    """The output of a step, which is there when its time has come."""

    def __init__(self, ready: float, output: Any) -> None:
        super().__init__()
        self._ready, self._output = ready, output

    def result(self, timeout: float | None = None) -> Any:
        time.sleep(max(self._ready - time.perf_counter(), 0))
        return self._output

    def done(self) -> bool:
        return time.perf_counter() >= self._ready

    def add_done_callback(self, fn: Any) -> None:
        fn(self)


class PretendedDevice(UniProcExecutor):  # type: ignore[misc]  # vLLM is untyped here
    """Loads the model as the CPU's worker does, and computes nothing with it."""

    def _init_executor(self) -> None:
        scheduling = self.vllm_config.scheduler_config
        scheduling.async_scheduling, ahead = False, scheduling.async_scheduling  # the worker is the CPU's
        super()._init_executor()
        scheduling.async_scheduling = ahead
        self._step = float(os.environ.get(STEP_VARIABLE, "12")) / 1e3
        self._prefill = float(os.environ.get(PREFILL_VARIABLE, "20")) / 1e6
        self._left: dict[str, int] = {}  # prompt tokens that are still to be read
        self._free = 0.0  # when the device is done with what it was given
        self._pending: tuple[float, list[str]] = (0.0, [])

    def compile_or_warm_up_model(self) -> float:
        """Nothing is to be compiled."""
        return 0.0

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begin a step; `sample_tokens` gives what comes of it."""
        for new in scheduler_output.scheduled_new_reqs:
            self._left[new.req_id] = len(new.prompt_token_ids) - new.num_computed_tokens
        for gone in scheduler_output.finished_req_ids:
            self._left.pop(gone, None)
        scheduled = scheduler_output.num_scheduled_tokens
        if not scheduled:
            return _known(EMPTY_MODEL_RUNNER_OUTPUT) if non_block else EMPTY_MODEL_RUNNER_OUTPUT
        read = sum(self._read(request, count) for request, count in scheduled.items())
        self._free = max(self._free, time.perf_counter()) + self._step + self._prefill * read
        self._pending = self._free, list(scheduled)
        return _known(None) if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """What the step gave, when its time has come."""
        ready, requests = self._pending
        later = _AtTime(ready, self._output(requests, _allowed(grammar_output)))
        return later if non_block else later.result()

    def _read(self, request: str, count: int) -> int:
        """Prompt tokens among those scheduled of a request."""
        left = self._left.get(request, 0)
        if left <= 0:
            return 0
        self._left[request] = left - count
        return count

    def _output(self, requests: list[str], allowed: dict[str, int]) -> Any:
        return ModelRunnerOutput(
            req_ids=requests,
            req_id_to_index={request: number for number, request in enumerate(requests)},
            sampled_token_ids=[
                []
                if self._left.get(request, 0) > 0
                else [allowed.get(request, _LETTER_A + number * 7 % _LETTERS)]
                for number, request in enumerate(requests, 1)
            ],
        )


def _allowed(grammars: Any) -> dict[str, int]:
    """The first token that its grammar allows, for each request that has one."""
    if grammars is None:
        return {}
    masks = grammars.grammar_bitmask.view("uint32")
    found = {}
    for request, mask in zip(grammars.structured_output_request_ids, masks, strict=False):
        word = int(mask.nonzero()[0][0])
        bits = int(mask[word])
        found[request] = word * 32 + (bits & -bits).bit_length() - 1
    return found


def _known(result: Any) -> Any:
    future: Any = Future()
    future.set_result(result)
    return future
