"""Images of models that see: what vLLM makes of them is kept in the front alone.

vLLM's front and core keep equal lists of the images that the core has, so that the front need not send one
twice. They part when the front reads a row that never comes to the core, as one whose grammar is refused; the
core then lacks an image. So here the front keeps what it made of images, for rows about the same image,
and sends it each time. The module imports no vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dray.errors import ConfigError

CACHE = "mm_processor_cache_gb"
"""vLLM's engine argument: GiB of what the front keeps."""

WITHOUT_LIST: dict[str, Any] = {CACHE: 0}
"""Engine arguments with which the core keeps no list."""

_CACHE_GB = 1.0
_TOLD_EACH_TIME = "vllm.v1.worker.cpu_worker"


def cache_size(arguments: Mapping[str, Any]) -> float:
    """The GiB that the front may keep, by the user's engine arguments.

    Raises:
        ConfigError: they say no number from 0 on.
    """
    given = arguments.get(CACHE, _CACHE_GB)
    if isinstance(given, bool) or not isinstance(given, int | float) or given < 0:
        raise ConfigError(f"engine argument {CACHE}: {given!r} is no number of GiB, 0 or more")
    return float(given)


def keep_in_front(engine: Any, gigabytes: float) -> None:
    """Give the front of an ``LLMEngine``, whose core runs, a cache for what it makes of images."""
    if not engine.model_config.supports_multimodal_inputs or not gigabytes:
        return
    from vllm.multimodal.cache import MultiModalProcessorOnlyCache

    engine.model_config.multimodal_config.mm_processor_cache_gb = gigabytes
    engine.renderer._mm_processor_cache = MultiModalProcessorOnlyCache(engine.model_config)
    logging.getLogger(_TOLD_EACH_TIME).addFilter(_Once())


class _Once(logging.Filter):
    """Lets each message through once: vLLM on CPU says two lines about its threads for each image."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is new."""
        new = record.msg not in self._told
        self._told.add(str(record.msg))
        return new


def sees_images(model_config: Any, renderer: Any) -> bool:
    """Whether the model takes images, and the engine's arguments leave it some (``limit_mm_per_prompt``)."""
    if not model_config.supports_multimodal_inputs:
        return False
    return bool(renderer.get_mm_processor().info.allowed_mm_limits.get("image", 0))
