"""What the reference implementation of safetensors reads, with types: its own stub gives none."""

from __future__ import annotations

from typing import Any, TypedDict

import safetensors


class Tensor(TypedDict):
    """One tensor of a file."""

    dtype: str
    shape: list[int]
    data: bytearray


def deserialize(content: bytes) -> list[tuple[str, Tensor]]:
    """The tensors of a file by their names, in its order.

    Raises:
        SafetensorError: the content is no file that the reference implementation takes.
    """
    read: Any = safetensors.deserialize
    found: list[tuple[str, Tensor]] = read(content)
    return found
