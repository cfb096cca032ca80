"""Images in the messages of a request: what a row may say of them."""

from __future__ import annotations

from dray.requests.media.medium import IMAGES
from dray.requests.media.parts import Part, PartForm
from dray.requests.validate import BadRow

_DETAILS = (None, "auto", "high")


def _judged(value: Part, field: str) -> BadRow | None:
    """OpenAI's ``detail`` is not vLLM's: it may say no more than that the image is to be read whole."""
    if value.get("detail") in _DETAILS:
        return None
    return IMAGES.bad(
        "this detail cannot be honoured: models read each image whole; leave it out, or bound the size "
        "of images for all rows with the engine argument mm_processor_kwargs",
        f"{field}.image_url.detail",
    )


IMAGE = PartForm(
    medium=IMAGES,
    type="image_url",
    plain="image",
    names=("url", "image", "path"),
    most=256,
    beside=frozenset({"detail"}),
    judged=_judged,
)
"""OpenAI's form of an image, and the others that rows may give."""
