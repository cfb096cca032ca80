"""Images into pixels by vLLM's own reader, which is kept from decoding more of a row than there may be."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO
from typing import Any

from vllm.multimodal.image import open_image
from vllm.multimodal.media import connector, image

from dray.engine.vllm_adapter.media import decoded
from dray.requests.media.medium import IMAGES

_COLOURS = 3
_SMALLER = "; make them smaller, or give fewer of them in a row"


class _Images(image.ImageMediaIO):  # type: ignore[misc]  # vLLM has no types
    """vLLM's reader of the images in chats, which counts what it decodes."""

    def load_bytes(self, data: bytes) -> Any:
        """The image.

        Raises:
            RequestRefused: the row's images are too large together.
            ValueError, PIL's errors: it is none that can be decoded.
        """
        pixels = 0
        with suppress(Exception), open_image(BytesIO(data)) as found:  # what is no image, vLLM says below
            pixels = found.width * found.height
        decoded.add(IMAGES, pixels * _COLOURS, _SMALLER)
        return super().load_bytes(data)


def count_images() -> None:
    """Have vLLM's loader count what it decodes of each row."""
    connector.ImageMediaIO = _Images
