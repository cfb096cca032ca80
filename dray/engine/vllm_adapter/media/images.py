"""Images of models that see: what vLLM makes of them is kept in the front alone.

vLLM's front and core keep equal lists of the images that the core has, so that the front need not send one
twice. They part when the front reads a row that never comes to the core, as one whose grammar is refused; the
core then lacks an image, and refuses the next row about it for now. So here the front keeps what it made of
images, for rows about the same image, and sends it each time. The module imports no vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dray.engine.protocol import EngineSpec
from dray.errors import ConfigError
from dray.requests.media.medium import IMAGES, SOUNDS, VIDEOS, Medium

CACHE = "mm_processor_cache_gb"
"""vLLM's engine argument: GiB of what the front keeps."""

THREADS = "image_threads"
"""dray's own engine argument: the threads that read images."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Pillow's names of the formats that are read. Decoders of others are written in Python: slow, and large."""

WITHOUT_LIST: dict[str, Any] = {CACHE: 0}
"""Engine arguments with which the core keeps no list."""

_SORT = "mm_processor_cache_type"
_CACHE_GB = 1.0
_MOST_THREADS = 4
_TOLD_EACH_TIME = "vllm.v1.worker.cpu_worker"
_NAMES = {IMAGES: "image", SOUNDS: "audio", VIDEOS: "video"}  # vLLM's


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSettings:
    """How a replica reads images: by so many ``threads``, which may run on ``cores``; 0 for the engine's own.

    ``gigabytes`` (GiB) is what all renderers together may keep.
    """

    threads: int
    gigabytes: float
    cores: frozenset[int]

    @classmethod
    def of(cls, spec: EngineSpec, cores: Collection[int]) -> ImageSettings:
        """Settings by the user's engine arguments; where they say nothing, by the replica's cores.

        Raises:
            ConfigError: an argument is no such number.
        """
        given, gigabytes = asked_of_images(spec.arguments)
        own = min(len(cores), int(spec.cpus)) if spec.cpus and spec.cpus >= 1 else len(cores)
        threads = min(_MOST_THREADS, own) if given is None else given
        return cls(threads=threads, gigabytes=gigabytes, cores=frozenset(cores))

    def prepare(self, renderer: Any, model_config: Any) -> None:
        """Have a renderer take the formats above alone, count pixels, and keep what it makes of images.

        The engine's core has started by then, without a list of its own.
        """
        if not model_config.supports_multimodal_inputs:
            return
        from vllm.multimodal import image

        from dray.engine.vllm_adapter.media.image_cache import RowCache
        from dray.engine.vllm_adapter.media.image_reader import count_images

        image.ALLOWED_IMAGE_FORMATS = tuple(one for one in image.ALLOWED_IMAGE_FORMATS if one in FORMATS)
        count_images()
        tell_once(_TOLD_EACH_TIME)  # of its threads, twice for each image
        if not self.gigabytes:
            return
        # Read below, and where vLLM decides whether images are told apart by what they hold.
        model_config.multimodal_config.mm_processor_cache_gb = self.gigabytes / (self.threads + 1)
        renderer._mm_processor_cache = RowCache(model_config)


def asked_of_images(arguments: Mapping[str, Any]) -> tuple[int | None, float]:
    """The threads (None: not said) and the GiB that the user's engine arguments name.

    Raises:
        ConfigError: one is no such number, or the cache is to be of a sort that is shared.
    """
    threads, gigabytes = arguments.get(THREADS), arguments.get(CACHE, _CACHE_GB)
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 0):
        raise ConfigError(f"engine argument {THREADS}: {threads!r} is no whole number, 0 or more")
    if isinstance(gigabytes, bool) or not isinstance(gigabytes, int | float) or gigabytes < 0:
        raise ConfigError(f"engine argument {CACHE}: {gigabytes!r} is no number of GiB, 0 or more")
    if arguments.get(_SORT) not in (None, "lru"):
        raise ConfigError(f"engine argument {_SORT}: front and core share no images here; leave it out")
    return threads, float(gigabytes)


def tell_once(name: str) -> None:
    """Let one of vLLM's modules say each thing once."""
    logger = logging.getLogger(name)
    if not any(isinstance(one, _Once) for one in logger.filters):
        logger.addFilter(_Once())


class _Once(logging.Filter):
    """Lets each message through once."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is new."""
        new = record.msg not in self._told
        self._told.add(str(record.msg))
        return new


def media_of(model_config: Any, renderer: Any, wanted: Collection[Medium]) -> tuple[Medium, ...]:
    """Which of these the model takes, if the engine's arguments leave it some (``limit_mm_per_prompt``)."""
    if not model_config.supports_multimodal_inputs:
        return ()
    limits = renderer.get_mm_processor().info.allowed_mm_limits
    return tuple(one for one in wanted if limits.get(_NAMES[one], 0))
