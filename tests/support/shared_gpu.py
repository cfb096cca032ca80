"""Where the tests find a GPU, their engines start beside each other on it."""

from __future__ import annotations

import functools
import shutil
from typing import Any

import pytest

_SMALL = {
    "gpu_memory_utilization": 0.02,  # what has to be free at a start
    "kv_cache_memory_bytes": 256 << 20,
    "enforce_eager": True,  # no graphs: an engine lives for a few tests
    "kernel_config": {"enable_jit_warmup": False},
}
_DEFAULT_SHARE = 0.92  # what `LLM` says where its caller says nothing


def share_the_gpu(patch: pytest.MonkeyPatch) -> None:
    """Give vLLM's engines of this process small caches by default; without a GPU this does nothing.

    ``pytest tests/integration/engine`` can so run on a GPU in several processes: each engine would else take
    92% of the GPU's memory. No GPU has run it yet.
    """
    if shutil.which("nvidia-smi") is None:
        return
    from vllm.engine.arg_utils import EngineArgs

    made = EngineArgs.__init__

    @functools.wraps(made)
    def small(self: Any, *args: Any, **given: Any) -> None:
        if given.get("gpu_memory_utilization") == _DEFAULT_SHARE:
            del given["gpu_memory_utilization"]
        known = {name: value for name, value in given.items() if value is not None or name not in _SMALL}
        made(self, *args, **(_SMALL | known))

    patch.setattr(EngineArgs, "__init__", small)
