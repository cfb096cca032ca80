"""Tensors from mapped files to a CUDA device, at the pace of a copy from pinned memory.

A copy from ordinary memory passes through a buffer of the driver, at a fraction of what the bus can do. So
:func:`to_device` puts pinned buffers between (``staging.py``): threads fill one while the device reads the
other. A tensor that is pinned already goes straight. What the caller gets is a device tensor of its own,
never a buffer that is used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dray.weights.loading.ring import Room
from dray.weights.loading.staging import Staging, indexed

if TYPE_CHECKING:
    import torch


def to_device(
    tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device | str, *, headroom_bytes: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same tensors on a CUDA device, in the same order, ready for the stream that is current at ``next``.

    Each is memory of its own, which the caller may keep and change. A tensor comes as it was given where the
    device is not a CUDA device, or where its free memory would not hold the largest tensor so far and the
    headroom. That is then a view of the mapping: whether the caller may write to it depends on how it was
    mapped.

    When the iterator ends or is closed, nothing reads the host's tensors any more. About 128 MiB, or two
    tensors, are on their way at a time; what the caller has let go is used again.

    Args:
        tensors: of the host; the device itself reads those that are pinned.
        headroom_bytes: of device memory, to be left to the caller.
    """
    import torch

    if torch.device(device).type != "cuda":
        yield from tensors
        return
    target = indexed(device)
    room = Room(headroom_bytes, lambda: _free_bytes(target))
    with Staging(target) as staging:
        for name, tensor in tensors:
            # Not through a variable: this frame would keep the tensor alive while the caller has it no more.
            yield name, _moved(tensor, staging, room)


def _moved(tensor: torch.Tensor, staging: Staging, room: Room) -> torch.Tensor:
    import torch

    if tensor.device.type != "cpu" or not room.takes(tensor.nbytes):
        return tensor
    try:
        return staging.copy(tensor)
    except torch.OutOfMemoryError:  # another process was faster, or it is free in pieces only
        room.ask_again()
        return tensor


def _free_bytes(device: torch.device) -> int:
    """Bytes free on the device, or held by PyTorch's allocator and in no tensor."""
    import torch

    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused
