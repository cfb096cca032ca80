"""The tensors of a model on this node, as views of its files, each as soon as its bytes are there."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dray.errors import EngineStartError, WeightsError
from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.node.cache import DESCRIPTION, READY, ModelPaths
from dray.weights.node.description import Description, read_description
from dray.weights.node.places import CacheRoot
from dray.weights.node.ready import ChunkMap
from dray.weights.source.checkpoint import check_checkpoint
from dray.weights.source.header import BITS, Header, TensorInfo

if TYPE_CHECKING:
    import torch

_ENGINE = ".engine"
_TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F4": "float4_e2m1fn_x2",
}  # fmt: skip
"""PyTorch's names of the types (safetensors 0.8, ``torch.py``, ``_TYPES``)."""


@dataclass(slots=True)
class LoadStats:
    """How a load went. ``waited`` is the part of ``seconds`` in which bytes had not arrived yet."""

    seconds: float = 0.0
    waited: float = 0.0


@dataclass(slots=True)
class _File:
    path: Path
    header: Header
    number: int
    size: int


@dataclass(slots=True)
class StreamedWeights:
    """The weights of one model: those of a folder that is complete, or of one that is being filled.

    ``tensors`` yields views of private mappings, and copies nothing. The views stay what they are as long as
    the caller holds them, whatever it does to one of them.
    """

    name: str
    files: list[_File]
    plan: ChunkPlan | None = None
    ready: ChunkMap | None = None
    stats: LoadStats = field(default_factory=LoadStats)

    @classmethod
    def of(cls, folder: Path) -> StreamedWeights:
        """The weights of a model's folder, or of the folder that an engine got (``LocalModel.wait_engine``).

        Raises:
            WeightsError: a file is damaged, or the index is not true.
            EngineStartError: the folder was removed before this.
        """
        if not folder.name.endswith(_ENGINE):
            files = [
                _File(path=folder / name, header=header, number=0, size=(folder / name).stat().st_size)
                for name, header in check_checkpoint(folder).items()
            ]
            return cls(name=str(folder), files=files)
        key = folder.name.removesuffix(_ENGINE)
        paths = ModelPaths(place=CacheRoot(root=folder.parent, memory=True), key=key)
        try:
            place, description, ready = _opened(paths.partial)
        except (FileNotFoundError, WeightsError):
            if not (paths.whole.is_dir() or paths.partial.is_dir()):
                raise EngineStartError(f"{folder} was removed from outside before it was loaded") from None
            if not paths.whole.is_dir():
                raise
            # It was published, perhaps at this moment.
            place, description, ready = _opened(paths.whole, published=True)
        sizes = {file.name: file.size for file in description.files}
        numbers = {file.name: number for number, file in enumerate(description.files)}
        files = [
            _File(path=place / name, header=header, number=numbers[name], size=sizes[name])
            for name, header in check_checkpoint(folder, sizes).items()
        ]
        return cls(name=description.uri, files=files, plan=description.plan(), ready=ready)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor: file by file, in the order of their bytes, which is the order of the fetch.

        Raises:
            WeightsError: the bytes of one cannot be had.
            EngineStartError: the model was removed meanwhile.
        """
        began = time.monotonic()
        for file in self.files:
            yield from self._of(file)
        self.stats.seconds = time.monotonic() - began

    def _of(self, file: _File) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            mapping = _mapped(file)
        finally:
            if self.ready is not None:
                self.ready.refuse_removed()
        for tensor in file.header.tensors:
            start, end = file.header.data_start + tensor.start, file.header.data_start + tensor.end
            if self.ready is not None and self.plan is not None:
                numbers = self.plan.covering(file.number, start, end)
                what = f"{self.name}: tensor {tensor.name!r}"
                self.stats.waited += self.ready.wait(numbers, what=what, alive=_refuse_to_be_left)
            yield tensor.name, self._view(file, mapping, tensor, start)

    def _view(self, file: _File, mapping: mmap.mmap, tensor: TensorInfo, start: int) -> torch.Tensor:
        import torch

        dtype = getattr(torch, _TORCH.get(tensor.dtype, "none"), None)
        if dtype is None:
            raise WeightsError(
                f"{file.path}: tensor {tensor.name!r}: this PyTorch has no type {tensor.dtype}"
            )
        size, shape = max(BITS[tensor.dtype] // 8, 1), tensor.shape
        if tensor.dtype == "F4":  # PyTorch counts pairs
            shape = (*shape[:-1], shape[-1] // 2)
        count = (tensor.end - tensor.start) // size
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        if start % size:  # the processor, or PyTorch's kernels, may want aligned addresses
            piece = bytearray(mapping[start : start + count * size])
            return torch.frombuffer(piece, dtype=dtype).view(shape)
        return torch.frombuffer(mapping, dtype=dtype, count=count, offset=start).view(shape)


def _opened(place: Path, *, published: bool = False) -> tuple[Path, Description, ChunkMap]:
    description = read_description(place / DESCRIPTION)
    return place, description, ChunkMap(place / READY, writable=False, published=published)


def _refuse_to_be_left() -> None:
    """A rank whose parent process was killed waits no longer: no engine would use the device memory it keeps.

    vLLM's workers look for that only once they are loaded.
    """
    starter = multiprocessing.parent_process()
    if starter is not None and not starter.is_alive():
        raise WeightsError("the process that started this one is gone")


def _mapped(file: _File) -> mmap.mmap:
    """The file, private and writable: a model that edits a tensor in place edits its own copy."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY)
    except FileNotFoundError:  # it was published meanwhile
        descriptor = os.open(file.path.parent.with_suffix("") / file.path.name, os.O_RDONLY)
    try:
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        return mmap.mmap(descriptor, file.size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(descriptor)
