"""What a renderer keeps of images that it has read: it changes between two rows, and never within one."""

from __future__ import annotations

from typing import Any

from vllm.multimodal.cache import MultiModalProcessorOnlyCache
from vllm.multimodal.cache.base import MultiModalProcessorCacheItem


class RowCache(MultiModalProcessorOnlyCache):  # type: ignore[misc]  # vLLM has no types
    """vLLM's cache, which takes in what a row has brought when the next row looks for its images.

    vLLM looks for all images of a row, and then takes them out of the cache or puts them in, one after the
    other. So a new one may push out one that was found, and vLLM raises.
    """

    def __init__(self, model_config: Any) -> None:
        super().__init__(model_config)
        self._new: list[tuple[str, Any]] = []

    def is_cached_item(self, mm_hash: str) -> bool:
        """Whether an image is there. vLLM asks for all of a row before it takes the first."""
        new, self._new = self._new, []
        for name, item in new:
            self.cache_if_fits(self._cache, name, MultiModalProcessorCacheItem(*item))
        return bool(super().is_cached_item(mm_hash))

    def get_and_update_item(self, mm_item: Any, mm_hash: str) -> Any:
        """What was made of an image, which ``mm_item`` holds where it was not there."""
        if mm_item is None:
            return super().get_and_update_item(mm_item, mm_hash)
        self._new.append((mm_hash, mm_item))
        return mm_item
