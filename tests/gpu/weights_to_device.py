"""How fast tensors of a safetensors file in shared memory get into a model on a GPU: beside the bus itself.

``python -m tests.gpu.weights_to_device`` from the repository's root. It needs a GPU, PyTorch, NumPy and
safetensors, and nothing else of dray's.

The model is a dictionary of parameters that are there already, and each tensor is copied into its own, as
engines do it. Every way starts with a new mapping of the file, as a new process would. The limit is one copy
of the same bytes from pinned memory. Rounds are interleaved; what arrived is compared with what was sent
after every run, outside the time.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch

try:
    from dray.weights.loading import device, staging
    from dray.weights.source import header
except ModuleNotFoundError:
    # The package around them imports what reads object stores; these need nothing of it.
    _package = ModuleType("dray.weights")
    _package.__path__ = [str(Path(__file__).parents[2] / "dray" / "weights")]
    sys.modules["dray.weights"] = _package
    from dray.weights.loading import device, staging
    from dray.weights.source import header

HEADROOM = 1 << 30
PART = 64 << 20  # bytes that the file is written and compared by
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8}
Tensors = list[tuple[str, torch.Tensor]]

# ---- the file ------------------------------------------------------------------------------------


def layout(size: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """Names, types, shapes: of a Llama of 7B, with as many layers as ``size`` has room for; and oddities."""
    width, inner, words = 4096, 14336, 32000
    if size < 1 << 30:  # for a try-out
        width, inner, words = 256, 896, 2000
    rows: list[tuple[str, str, tuple[int, ...]]] = [
        ("embed", "BF16", (words, width)),
        ("empty", "BF16", (0, 7)),
    ]
    layer: list[tuple[str, str, tuple[int, ...]]] = [
        ("norm", "BF16", (width,)),
        *((name, "BF16", (width, width)) for name in "qkvo"),
        *((name, "BF16", (inner, width)) for name in ("gate", "up")),
        ("down", "F8_E4M3", (width, inner)),
        ("down_scale", "F32", ()),
    ]
    one = sum(_bytes(dtype, shape) for _, dtype, shape in layer)
    # Not more than asked for: PyTorch rounds pinned memory up to a power of two.
    for number in range((size - _bytes(*rows[0][1:]) - 3) // one):
        rows += [(f"{number}.{name}", dtype, shape) for name, dtype, shape in layer]
    return [*rows, ("odd", "U8", (3,))]  # last, so that all others are aligned


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return int(numpy.prod(shape, dtype=numpy.int64)) * DTYPES[dtype].itemsize


def write_model(path: Path, size: int, seed: int) -> None:
    """A sound safetensors file with ``size`` bytes of noise, or somewhat less."""
    entries: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in layout(size):
        start, end = end, end + _bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    noise = numpy.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, PART):
            file.write(noise.bytes(min(PART, end - start)))


def views(mapping: mmap.mmap, found: header.Header) -> Tensors:
    """The file's tensors, in the order of their data, as views of its mapping."""
    return [(tensor.name, _view(mapping, tensor, found.data_start)) for tensor in found.tensors]


def _view(mapping: mmap.mmap, tensor: header.TensorInfo, data_start: int) -> torch.Tensor:
    dtype = DTYPES[tensor.dtype]
    if tensor.start == tensor.end:
        return torch.empty(tensor.shape, dtype=dtype)
    flat = torch.frombuffer(
        mapping, dtype=torch.uint8, offset=data_start + tensor.start, count=tensor.end - tensor.start
    )
    return flat.view(dtype).reshape(tensor.shape)


# ---- one run -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Bench:
    """What all runs share, and what the last one took: seconds, of the wall and of all cores."""

    path: Path
    found: header.Header
    pinned: torch.Tensor  # all data of the file, in pinned memory
    limit: (
        torch.Tensor
    )  # the same, on the GPU: where the limit is measured, and what arrives is compared with
    parameters: dict[str, torch.Tensor]
    wall: float = 0.0
    cpu: float = 0.0
    extra: int = 0  # bytes of GPU memory beside the parameters, at most

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Times its block, and all that the GPU has to do for it."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        torch.cuda.synchronize()
        self.wall, self.cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.extra = torch.cuda.max_memory_allocated() - before

    @contextmanager
    def mapped(self) -> Iterator[Tensors]:
        """The tensors of a new, private mapping."""
        with self.path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        yield views(mapping, self.found)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """What an engine does with them."""
        for name, tensor in tensors:
            self.parameters[name].copy_(tensor)

    def forget(self) -> None:
        """So that a run cannot pass with what another one brought."""
        for parameter in self.parameters.values():
            _flat(parameter).zero_()

    def check(self) -> None:
        """Every parameter holds the file's bytes."""
        for tensor in self.found.tensors:
            if not torch.equal(_flat(self.parameters[tensor.name]), self.limit[tensor.start : tensor.end]):
                raise SystemExit(f"{tensor.name} differs from the file")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


# ---- the ways ------------------------------------------------------------------------------------


def limit(bench: Bench) -> None:
    with bench.timed():
        bench.limit.copy_(bench.pinned, non_blocking=True)
    bench.load((t.name, _part(bench.limit, t, bench.parameters[t.name])) for t in bench.found.tensors)


def _part(data: torch.Tensor, tensor: header.TensorInfo, like: torch.Tensor) -> torch.Tensor:
    part = data[tensor.start : tensor.end].clone()  # a copy is aligned
    return part.view(like.dtype).reshape(like.shape)


def pageable(bench: Bench) -> None:
    with bench.timed(), bench.mapped() as tensors:
        bench.load(tensors)


def staged(bench: Bench) -> None:
    with bench.timed(), bench.mapped() as tensors:
        bench.load(device.to_device(tensors, "cuda", headroom_bytes=HEADROOM))


def staged_by_one_thread(bench: Bench) -> None:
    with (
        bench.timed(),
        bench.mapped() as tensors,
        staging.Staging("cuda", threads=1) as stage,
    ):
        bench.load((name, stage.copy(tensor)) for name, tensor in tensors)


def load_file(bench: Bench) -> None:
    from safetensors.torch import load_file as load

    with bench.timed():
        found = load(bench.path, device="cuda")
    bench.load(found.items())


LIMIT = "pinned cudaMemcpy (the limit)"
WAYS: dict[str, Callable[[Bench], None]] = {
    LIMIT: limit,
    "to_device, staged": staged,
    "staged by one thread": staged_by_one_thread,
    "views, pageable copy_": pageable,
    "safetensors load_file(device='cuda')": load_file,
}


# ---- all runs ------------------------------------------------------------------------------------


@dataclass
class Series:
    """One figure per round: GB/s, its ratio to the limit of that round, CPU s/GB; and extra MiB at most."""

    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    extra: float = 0.0


def measure(bench: Bench, repeats: int) -> dict[str, Series]:
    """Rounds of all ways, the first of which does not count."""
    series = {name: Series() for name in WAYS}
    size = bench.limit.nbytes
    for number in range(repeats + 1):
        taken = {}
        for name in _turned(list(WAYS), number):
            taken[name] = _run(bench, WAYS[name])
        for name, (wall, cpu, extra) in taken.items() if number else ():
            one = series[name]
            one.rates.append(size / wall / 1e9)
            one.ratios.append(taken[LIMIT][0] / wall)
            one.cpu.append(cpu / (size / 1e9))
            one.extra = max(one.extra, extra / 2**20)
        print(f"round {number} of {repeats}", file=sys.stderr)
    return series


def _turned(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _run(bench: Bench, way: Callable[[Bench], None]) -> tuple[float, float, int]:
    bench.forget()
    way(bench)
    bench.check()
    torch.cuda.empty_cache()  # the next one does not get this one's memory for nothing
    return bench.wall, bench.cpu, bench.extra


def prepare(path: Path) -> Bench:
    """Pinned bytes, their copy on the GPU, checked against the file, and empty parameters."""
    found = header.read_header(path)
    pinned = torch.empty(path.stat().st_size - found.data_start, dtype=torch.uint8, pin_memory=True)
    with path.open("rb") as file:
        file.seek(found.data_start)
        file.readinto(pinned.numpy().data)
    bench = Bench(
        path=path,
        found=found,
        pinned=pinned,
        limit=pinned.cuda(),
        parameters={
            tensor.name: torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype], device="cuda")
            for tensor in found.tensors
        },
    )
    _check_reference(bench)
    return bench


def _check_reference(bench: Bench) -> None:
    """What all runs are compared with is what the file holds, byte for byte."""
    data = numpy.memmap(bench.path, dtype=numpy.uint8, mode="r", offset=bench.found.data_start)
    for start in range(0, bench.limit.nbytes, PART):
        back = bench.limit[start : start + PART].cpu().numpy()
        if not numpy.array_equal(back, data[start : start + PART]):
            raise SystemExit(f"bytes from {start:,} on differ between the file and the GPU")


def table(series: dict[str, Series]) -> str:
    """Markdown."""
    lines = [
        "| way | GB/s, median (least - most) | of the limit, median (least - most) | CPU s/GB | extra MiB |",
        "|---|---|---|---|---|",
    ]
    for name, one in series.items():
        figures = (_spread(one.rates, ".1f"), _spread(one.ratios, ".2f"))
        rest = (f"{statistics.median(one.cpu):.3f}", f"{one.extra:.0f}")
        lines.append(f"| {' | '.join((name, *figures, *rest))} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} - {max(values):{form}})"


def machine() -> str:
    """One line."""
    gpu = torch.cuda.get_device_properties(0)
    return (
        f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB; {len(os.sched_getaffinity(0))} cores, "
        f"{platform.machine()}, Linux {platform.release()}; "
        f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    )


def main() -> int:
    """The table on stdout; 1 without a GPU or without room for the file."""
    arguments = parse()
    size = int(arguments.gib * 2**30)
    if not torch.cuda.is_available():
        print("no GPU", file=sys.stderr)
        return 1
    if shutil.disk_usage(arguments.folder).free < 1.2 * size:
        print(
            f"{arguments.folder} has no room for {arguments.gib} GiB; see --folder and --gib", file=sys.stderr
        )
        return 1
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="dray-weights-") as folder:
        path = Path(folder) / "model.safetensors"
        write_model(path, size, arguments.seed)
        bench = prepare(path)
        series = measure(bench, arguments.repeats)
    print(f"{machine()}\n{bench.limit.nbytes / 1e9:.2f} GB in {len(bench.parameters)} tensors, ", end="")
    print(f"{arguments.repeats} interleaved rounds; all bytes compared after every run\n")
    print(table(series))
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.weights_to_device", description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where the file goes; a tmpfs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
