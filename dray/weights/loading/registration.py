"""Mappings of files that a CUDA device reads by itself, for as long as they are pinned.

Pinning takes its time (about 0.1 s per GB: https://github.com/vllm-project/vllm/pull/51081), so it pays where
it happens beside something else, or once for several loads.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.weights.loading.staging import indexed

if TYPE_CHECKING:
    import torch

_PORTABLE, _READ_ONLY = 0x01, 0x08  # cudaHostRegisterPortable: for all devices; cudaHostRegisterReadOnly

logger = logging.getLogger(__name__)


@contextmanager
def registered(mapping: mmap.mmap | memoryview, device: torch.device | str = "cuda") -> Iterator[bool]:
    """Pin a shared mapping for the length of this block; gives whether that worked.

    Where it does not, tensors of it are staged. A read-only mapping can be pinned only where the device
    supports that, and not even a B300 does (https://github.com/vllm-project/vllm-omni/pull/6240). A writable
    one can be everywhere: map the file a second time, for the device alone, and never write to it. 512 GiB
    and more are refused.

    The mapping cannot be closed in this block. Tensors of it are pinned where their whole storage lies in it.

    Raises:
        ValueError: it is a private mapping. Pinning one makes a copy of every page, for this process alone.
    """
    import numpy

    view = numpy.frombuffer(mapping, dtype=numpy.uint8)
    address, size = view.ctypes.data, view.nbytes
    access = _access(address, size)
    if any(modes.endswith("p") for modes in access):
        raise ValueError("only a shared mapping can be registered; this memory is private to the process")
    writable = all("w" in modes for modes in access)
    pinned = size > 0 and _is_there(device) and _register(address, size, writable, device)
    try:
        yield pinned
    finally:
        if pinned:
            _unregister(address, device)
        del view  # until here it kept the mapping from being closed


def _access(address: int, size: int) -> list[str]:
    """How the kernel says that this memory is mapped, as ``rw-s``: one entry for each stretch of it."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        stretch, modes, *_ = line.split()
        start, end = (int(part, 16) for part in stretch.split("-"))
        if start < address + size and address < end:
            found.append(modes)
    return found


def _is_there(device: torch.device | str) -> bool:
    import torch

    return torch.device(device).type == "cuda" and torch.cuda.is_available()


def _register(address: int, size: int, writable: bool, device: torch.device | str) -> bool:
    """Whether it was pinned, in one of the ways that this memory allows.

    Plain pinning of read-only memory works where the device uses the host's page tables.
    """
    for flags in (_PORTABLE,) if writable else (_READ_ONLY | _PORTABLE, _PORTABLE):
        code = _call(device, "cudaHostRegister", address, size, flags)
        if code == 0:
            return True
        logger.info("%s bytes of weights are not pinned: CUDA error %s (flags %s)", f"{size:,}", code, flags)
    return False


def _unregister(address: int, device: torch.device | str) -> None:
    import torch

    torch.cuda.synchronize(indexed(device))  # what was started from it must have been read
    code = _call(device, "cudaHostUnregister", address)
    if code != 0:
        logger.warning("pinned weights could not be unpinned: CUDA error %s", code)


def _call(device: torch.device | str, name: str, *arguments: Any) -> int:
    """The code that a function of the CUDA runtime returns, 0 when it worked.

    Called in a thread of its own: CUDA keeps a failed call's error for the thread that made it, and PyTorch
    would take it for the failure of whatever it looks at next.
    """
    import torch

    target = indexed(device)

    def call() -> int:
        with torch.cuda.device(target):
            return int(getattr(torch.cuda.cudart(), name)(*arguments))  # type: ignore[no-untyped-call]

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()
