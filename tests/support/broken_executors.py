"""vLLM executors for an engine core's faults: engine argument ``distributed_executor_backend``."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.executor.uniproc_executor import UniProcExecutor

_WORDS = " ".join(["secret", "words"])  # apart: a trace shows lines of code


class Hungry(UniProcExecutor):  # type: ignore[misc]  # vLLM is untyped here
    """Memory does not suffice for its first step."""

    def execute_model(self, *_: Any, **__: Any) -> Any:
        raise MemoryError(_WORDS)


class Failing(UniProcExecutor):  # type: ignore[misc]
    """A kernel fails in its first step."""

    def execute_model(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(_WORDS)


class Stuck(UniProcExecutor):  # type: ignore[misc]
    """Its device never answers."""

    def execute_model(self, *_: Any, **__: Any) -> Any:
        time.sleep(3600)


class Unable(UniProcExecutor):  # type: ignore[misc]
    """It does not come up."""

    def _init_executor(self) -> None:
        raise RuntimeError("no device is free")
