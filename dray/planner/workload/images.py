"""Images, sounds and videos in prompts that are counted: so many tokens each, equal for equal files.

How many tokens a model makes of a file is its processor's to say: 64 to several thousand. A plan takes one
number for all. In the text of a prompt a mark stands for a file, so prefixes end where images differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b, shake_128
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGE_TOKENS = 1000
"""Tokens of a file, unless a user says another number: those of about a megapixel in many models."""

_BEGIN, _END = "\ue000dray-image-", "\ue001"  # of Unicode's private use
_MARK = re.compile(f"{_BEGIN}([0-9a-f]{{32}}){_END}")


def marked(url: str) -> str:
    """What stands in a text for the file at ``url``."""
    return f"{_BEGIN}{blake2b(url.encode(), digest_size=16).hexdigest()}{_END}"


def count_images(text: str) -> int:
    """The marks in a text."""
    return text.count(_BEGIN)


def tokens_with_images(
    text: str, encode: Callable[[str], NDArray[np.uint32]], image_tokens: int
) -> NDArray[np.uint32]:
    """The tokens of a text with marks: ``encode`` gives those of the texts between the images."""
    pieces = _MARK.split(text)
    found = [
        tokens_of(piece, image_tokens) if number % 2 else encode(piece) for number, piece in enumerate(pieces)
    ]
    return np.concatenate(found)


def without_marks(text: str, instead: str) -> tuple[str, list[str]]:
    """The text with ``instead`` for each mark, and the digests of the marks."""
    return _MARK.sub(instead, text), _MARK.findall(text)


def tokens_of(digest: str, count: int) -> NDArray[np.uint32]:
    """Tokens that stand for the file of this digest."""
    return np.frombuffer(shake_128(bytes.fromhex(digest)).digest(4 * count), np.uint32)
