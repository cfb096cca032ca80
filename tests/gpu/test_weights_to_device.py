"""Weights on their way to a GPU: every byte arrives, in memory of the caller's own, whatever else happens.

Run with ``pytest -m gpu tests/gpu/test_weights_to_device.py`` on a machine with a GPU; PyTorch, NumPy and
what ``tests/conftest.py`` imports are enough. An H200 has run this (26 November 2026).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:The given buffer is not writable"),
]

MIB = 1 << 20
ACCESS = {"private": mmap.ACCESS_COPY, "read-only": mmap.ACCESS_READ}


@pytest.fixture(scope="module")
def bench() -> Any:
    """The benchmark, which also knows how to import the code without the rest of the package."""
    from tests.gpu import weights_to_device

    return weights_to_device


@pytest.fixture(scope="module")
def file(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """60 MiB of weights in shared memory."""
    path = Path("/dev/shm") / f"{tmp_path_factory.mktemp('weights').name}-dray.safetensors"
    bench.write_model(path, 60 * MIB, seed=7)
    yield path
    path.unlink()


def mapped(bench: Any, file: Path, access: str) -> tuple[mmap.mmap, list[tuple[str, Any]]]:
    with file.open("r+b") as opened:
        mapping = mmap.mmap(opened.fileno(), 0, access=ACCESS[access])
    return mapping, bench.views(mapping, bench.header.read_header(file))


def assert_same(bench: Any, got: Any, sent: Any) -> None:
    assert got.is_cuda
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert torch.equal(bench._flat(got).cpu(), bench._flat(sent))


@pytest.mark.parametrize("slot_bytes", [512, 64 << 10, MIB, 64 * MIB])
def test_staged_tensors_arrive_through_slots_of_any_size(bench: Any, file: Path, slot_bytes: int) -> None:
    _, sent = mapped(bench, file, "private")
    some = sent if slot_bytes > 512 else sent[:12]  # thousands of pieces each
    with bench.staging.Staging("cuda", slot_bytes=slot_bytes) as staging:
        got = [staging.copy(tensor) for _, tensor in some]
    for mine, (_, theirs) in zip(got, some, strict=True):
        assert_same(bench, mine, theirs)


def test_a_consumer_that_keeps_everything_keeps_what_it_got(bench: Any, file: Path) -> None:
    _, sent = mapped(bench, file, "private")
    got = list(bench.device.to_device(sent, "cuda", headroom_bytes=0))
    assert [name for name, _ in got] == [name for name, _ in sent]
    for (_, mine), (_, theirs) in zip(got, sent, strict=True):
        assert_same(bench, mine, theirs)
    places = [mine.data_ptr() for _, mine in got if mine.numel()]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("on_a_stream_of_its_own", [False, True])
def test_a_consumer_that_is_slow_and_keeps_nothing_still_reads_the_right_bytes(
    bench: Any, file: Path, on_a_stream_of_its_own: bool
) -> None:
    _, sent = mapped(bench, file, "private")
    sums = []
    stream = torch.cuda.Stream() if on_a_stream_of_its_own else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        for _, tensor in bench.device.to_device(sent, "cuda", headroom_bytes=0):
            torch.cuda._sleep(2_000_000)  # about a millisecond of GPU time, before it is read
            sums.append(bench._flat(tensor).sum(dtype=torch.int64))
            del tensor  # its memory may be filled again: not before the sum has read it
    stream.synchronize()
    assert [int(one) for one in sums] == [int(bench._flat(t).sum(dtype=torch.int64)) for _, t in sent]


def test_device_memory_is_used_again_when_nothing_is_kept(bench: Any, file: Path) -> None:
    _, sent = mapped(bench, file, "private")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total = 0
    for _ in range(20):
        for _, tensor in bench.device.to_device(sent, "cuda", headroom_bytes=0):
            total += tensor.nbytes
    assert total > 1000 * MIB
    assert torch.cuda.max_memory_allocated() - before < 300 * MIB


def test_editing_a_tensor_changes_neither_the_file_nor_another_tensor(bench: Any, file: Path) -> None:
    before = file.read_bytes()
    _, sent = mapped(bench, file, "read-only")
    for _, tensor in bench.device.to_device(sent, "cuda", headroom_bytes=0):
        bench._flat(tensor).zero_()
    torch.cuda.synchronize()
    assert file.read_bytes() == before


def test_without_room_tensors_stay_on_the_host(bench: Any, file: Path) -> None:
    _, sent = mapped(bench, file, "private")
    got = list(bench.device.to_device(sent, "cuda", headroom_bytes=1 << 60))
    assert all(mine is theirs for (_, mine), (_, theirs) in zip(got, sent, strict=True) if theirs.numel())


def test_an_iterator_can_be_abandoned_and_the_mapping_closed(bench: Any, file: Path) -> None:
    mapping, sent = mapped(bench, file, "private")
    expected = [(name, tensor.clone()) for name, tensor in sent[:3]]
    found = bench.device.to_device(iter(sent), "cuda", headroom_bytes=0)
    got = [next(found) for _ in range(3)]
    found.close()
    del sent, found
    mapping.close()
    for (_, mine), (_, theirs) in zip(got, expected, strict=True):
        assert_same(bench, mine, theirs)


def test_it_works_where_the_gpu_is_the_default_device(bench: Any, file: Path) -> None:
    _, sent = mapped(bench, file, "private")
    with torch.device("cuda"):  # as engines load models
        got = list(bench.device.to_device(sent, "cuda", headroom_bytes=0))
    for (_, mine), (_, theirs) in zip(got, sent, strict=True):
        assert_same(bench, mine, theirs)
