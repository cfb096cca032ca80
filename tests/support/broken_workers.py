"""Workers of vLLM for faults in one rank of several: engine argument ``worker_cls``."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker

_WORDS = " ".join(["secret", "words"])  # apart: a trace shows lines of code
_STEPS_BEFORE = 4


class Hungry(CPUWorker):  # type: ignore[misc]  # vLLM is untyped here
    """Memory does not suffice for one step of the second rank, and would for the next one."""

    _steps = 0

    def execute_model(self, *arguments: Any, **options: Any) -> Any:
        self._steps += 1
        if self.rank == 1 and self._steps == _STEPS_BEFORE:
            raise torch.OutOfMemoryError(_WORDS)
        return super().execute_model(*arguments, **options)
