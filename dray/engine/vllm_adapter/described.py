"""What an engine computes on, and the model that it holds, for those who plan with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from dray.errors import ConfigError
from dray.planner.models import read_config

_MOST_BYTES = 1 << 20  # of a config.json: real ones have some thousand


def device_name(config: Any, processor: str) -> str:
    """The GPU as its driver calls it, or the processor; an executor of the user's is a device of its own."""
    from vllm.platforms import current_platform

    executor = config.parallel_config.distributed_executor_backend
    if isinstance(executor, type):
        return f"{executor.__module__}.{executor.__qualname__}"
    if isinstance(executor, str) and "." in executor:
        return executor
    return processor if current_platform.is_cpu() else str(current_platform.get_device_name())


def config_of(folder: str) -> str:
    """The config of the model in a folder, as a plan reads it; empty where there is none."""
    try:
        config = orjson.dumps(read_config(Path(folder)))
    except (ConfigError, TypeError):
        return ""
    return config.decode() if len(config) <= _MOST_BYTES else ""
