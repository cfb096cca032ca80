"""What of the way to a device needs no device: which slot is next, when to stay on the host, when to wait."""

from __future__ import annotations

import ctypes
import mmap
import random
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.weights.loading.device import to_device
from dray.weights.loading.ring import InFlight, Piece, Ring, Room
from dray.weights.loading.staging import HostCopier, Staging

torch: Any

pytestmark = pytest.mark.unit

GIB = 1 << 30


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Imported by the process of pytest that runs these tests, and not by each that collects them."""
    global torch
    torch = pytest.importorskip("torch")


# ---- the ring ------------------------------------------------------------------------------------


def test_a_large_tensor_goes_through_the_slots_in_turn() -> None:
    assert list(Ring(2, 1024).pieces(2500)) == [
        Piece(slot=0, at=0, start=0, size=1024, fresh=True),
        Piece(slot=1, at=0, start=1024, size=1024, fresh=True),
        Piece(slot=0, at=0, start=2048, size=452, fresh=True),
    ]


def test_small_tensors_share_a_slot_at_aligned_places() -> None:
    ring = Ring(2, 2048)
    found = [piece for size in (10, 512, 513, 5) for piece in ring.pieces(size)]
    assert [(piece.slot, piece.at, piece.size, piece.fresh) for piece in found] == [
        (0, 0, 10, True),
        (0, 512, 512, False),
        (0, 1024, 513, False),
        (1, 0, 5, True),
    ]


def test_a_tensor_that_does_not_fit_begins_in_what_is_left_of_a_slot() -> None:
    ring = Ring(2, 1024)
    assert [piece.size for size in (512, 600) for piece in ring.pieces(size)] == [512, 512, 88]


def test_an_empty_tensor_takes_nothing() -> None:
    ring = Ring(2, 1024)
    assert list(ring.pieces(0)) == []
    assert next(ring.pieces(1)) == Piece(slot=0, at=0, start=0, size=1, fresh=True)


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=30),
    slots=st.integers(2, 4),
    slot_bytes=st.sampled_from([512, 1024, 4096]),
)
def test_pieces_cover_every_tensor_and_never_overlap_in_a_slot(
    sizes: list[int], slots: int, slot_bytes: int
) -> None:
    ring = Ring(slots, slot_bytes)
    turn, used = -1, 0
    for size in sizes:
        end = 0
        for piece in ring.pieces(size):
            assert piece.start == end
            assert piece.size > 0
            end += piece.size
            if piece.fresh:
                turn, used = turn + 1, 0
            assert piece.slot == turn % slots
            assert used <= piece.at <= piece.at + piece.size <= slot_bytes
            assert piece.at % 512 == 0
            used = piece.at + piece.size
        assert end == size


@pytest.mark.parametrize(("slots", "slot_bytes"), [(1, 1024), (2, 0), (2, 1000), (2, -512)])
def test_a_ring_that_cannot_work_is_refused(slots: int, slot_bytes: int) -> None:
    with pytest.raises(ValueError, match="slots"):
        Ring(slots, slot_bytes)


# ---- room on the device --------------------------------------------------------------------------


class Free:
    """Free bytes of a device, and how often it was asked."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self.size


def test_a_tensor_goes_to_the_device_only_with_the_headroom_beside_it() -> None:
    assert Room(100, Free(300)).takes(200)
    assert not Room(101, Free(300)).takes(200)
    assert not Room(1000, Free(300)).takes(1)


def test_the_largest_tensor_so_far_must_fit_even_where_a_small_one_would() -> None:
    free = Free(1000)
    room = Room(0, free)
    assert room.takes(900)
    free.size = 500
    room.ask_again()
    assert not room.takes(100)
    free.size = 900
    assert room.takes(100)


def test_the_device_is_asked_once_per_gigabyte() -> None:
    free = Free(100 * GIB)
    room = Room(GIB, free)
    assert all(room.takes(1 << 20) for _ in range(1024))
    assert free.asked == 1
    assert room.takes(1 << 20)
    assert free.asked == 2
    assert room.takes(5 * GIB)
    assert free.asked == 3


def test_until_it_is_asked_again_the_caller_is_taken_to_keep_everything() -> None:
    free = Free(1000)
    room = Room(0, free)
    assert room.takes(600)
    free.size = 400
    assert not room.takes(600)
    assert free.asked == 2


def test_an_empty_tensor_always_fits() -> None:
    assert Room(100, Free(0)).takes(0)


# ---- copies under way ----------------------------------------------------------------------------


class Copy:
    """Stands for an event; knows when it was waited for."""

    def __init__(self, log: list[int], number: int) -> None:
        self._log, self._number = log, number

    def synchronize(self) -> None:
        self._log.append(self._number)


def test_copies_wait_for_the_oldest_once_there_are_too_many_bytes() -> None:
    waited: list[int] = []
    flying = InFlight(1000)
    for number in range(4):
        flying.make_way()
        flying.add(400, Copy(waited, number))
    assert waited == [0]
    flying.make_way()
    assert waited == [0, 1]
    flying.finish()
    assert waited == [0, 1, 2, 3]


def test_two_large_copies_overlap_all_the_same() -> None:
    waited: list[int] = []
    flying = InFlight(1000)
    for number in range(3):
        flying.make_way()
        flying.add(5000, Copy(waited, number))
    assert waited == [0]


def test_the_number_of_small_copies_is_bounded_too() -> None:
    waited: list[int] = []
    flying = InFlight(1 << 20)
    for number in range(1000):
        flying.make_way()
        flying.add(0, Copy(waited, number))
    assert len(waited) >= 700


# ---- bytes in memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, (1 << 20) - 1, (3 << 20) + 17])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_copy_every_byte_and_no_other(size: int, threads: int, rng: random.Random) -> None:
    source = ctypes.create_string_buffer(rng.randbytes(size + 1))
    target = ctypes.create_string_buffer(b"\xee" * (size + 1))
    copier = HostCopier(threads)
    copier.copy(ctypes.addressof(target), ctypes.addressof(source), size)
    copier.close()
    assert target.raw[:size] == source.raw[:size]
    assert target.raw[size:] == b"\xee\0"


# ---- the iterator --------------------------------------------------------------------------------


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object, **__: object) -> Any:
        raise AssertionError("CUDA was touched")

    for name in (
        "is_available",
        "cudart",
        "Stream",
        "Event",
        "current_stream",
        "current_device",
        "mem_get_info",
    ):
        monkeypatch.setattr(torch.cuda, name, touched)


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_nothing_is_touched_where_the_device_is_no_cuda_device(where: str) -> None:
    given_ = [("a", torch.arange(4)), ("b", torch.empty(0, 3)), ("c", torch.tensor(1.5))]
    found = list(to_device(iter(given_), where, headroom_bytes=0))
    assert [name for name, _ in found] == ["a", "b", "c"]
    assert all(mine is theirs for (_, mine), (_, theirs) in zip(found, given_, strict=True))


class Simulated:
    """A device that is host memory. Its copies are done when somebody waits for an event after them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, free: int = 8 * GIB) -> None:
        self.log: list[str] = []
        self.refuses_memory = False
        self._pending: list[tuple[Any, Any]] = []
        self._copy = torch.Tensor.copy_
        empty = torch.empty

        def fake_empty(*shape: Any, dtype: Any, device: Any = "", pin_memory: bool = False) -> Any:
            if pin_memory:
                assert str(device) == "cpu"
                self.log.append("slot")
            elif self.refuses_memory:
                raise torch.OutOfMemoryError
            return empty(*shape, dtype=dtype)

        def fake_copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
            assert non_blocking
            self._pending.append((target, source))
            return target

        class Event:
            def __init__(self, blocking: bool) -> None:
                assert blocking

            def record(event, stream: object) -> None:  # noqa: N805
                pass

            def synchronize(event) -> None:  # noqa: N805
                self.do_copies()

        class Stream:
            def __init__(stream, device: object = None) -> None:  # noqa: N805
                pass

            def wait_event(stream, event: Event) -> None:  # noqa: N805
                self.log.append("wait")

        monkeypatch.setattr(torch, "empty", fake_empty)
        monkeypatch.setattr(torch.Tensor, "copy_", fake_copy)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: self.log.append("record"))
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))

    def do_copies(self) -> None:
        for target, source in self._pending:
            self._copy(target, source)
        self._pending.clear()


def tensors() -> list[tuple[str, Any]]:
    torch.manual_seed(0)
    return [
        ("large", torch.randint(0, 255, (5001,), dtype=torch.uint8)),
        ("empty", torch.empty((0, 7), dtype=torch.bfloat16)),
        ("scalar", torch.tensor(2.5, dtype=torch.float64)),
        ("strided", torch.arange(60, dtype=torch.int16).reshape(6, 10).t()),
        ("bool", torch.rand(33) > 0.5),
        ("half", torch.randn(17, 9).to(torch.bfloat16)),
        ("float8", torch.randn(700).to(torch.float8_e4m3fn)),
    ]


def same(one: Any, other: Any) -> bool:
    """Of the same type and shape, and equal; float8 cannot be compared as such."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.double(), other.double())
        and (not one.numel() or one.data_ptr() != other.data_ptr())
    )


@pytest.mark.parametrize("slot_bytes", [512, 1024, 4096, 1 << 20])
def test_staged_bytes_arrive_though_copies_are_as_late_as_they_may_be(
    monkeypatch: pytest.MonkeyPatch, slot_bytes: int
) -> None:
    sent = tensors() * 3
    with monkeypatch.context() as patch:
        simulated = Simulated(patch)
        with Staging("cuda", slot_bytes=slot_bytes, threads=1) as staging:
            got = [staging.copy(tensor) for _, tensor in sent]
    assert all(same(mine, theirs) for mine, (_, theirs) in zip(got, sent, strict=True))
    assert simulated.log.count("slot") == 2
    assert simulated.log.count("wait") == simulated.log.count("record") == len(sent)


def test_pinned_tensors_take_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = tensors()
    with monkeypatch.context() as patch:
        simulated = Simulated(patch)
        patch.setattr(torch.Tensor, "is_pinned", lambda _: True)
        got = list(to_device(sent, "cuda", headroom_bytes=GIB))
    assert all(same(mine, theirs) for (_, mine), (_, theirs) in zip(got, sent, strict=True))
    assert "slot" not in simulated.log


def test_tensors_stay_on_the_host_while_the_device_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = tensors()
    Simulated(monkeypatch, free=GIB)
    got = list(to_device(sent, "cuda", headroom_bytes=GIB))
    assert [name for name, _ in got] == [name for name, _ in sent]
    assert all(mine is theirs for (_, mine), (_, theirs) in zip(got, sent, strict=True) if theirs.numel())


def test_a_device_that_runs_out_of_memory_all_the_same_leaves_them_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = tensors()
    simulated = Simulated(monkeypatch)
    simulated.refuses_memory = True
    got = list(to_device(sent, "cuda", headroom_bytes=0))
    assert all(mine is theirs for (_, mine), (_, theirs) in zip(got, sent, strict=True))


def test_an_iterator_that_is_closed_early_waits_for_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = tensors()
    with monkeypatch.context() as patch:
        Simulated(patch)
        patch.setattr(torch.Tensor, "is_pinned", lambda _: True)
        found = to_device(sent, "cuda", headroom_bytes=0)
        _, first = next(found)
        found.close()  # type: ignore[attr-defined]
    assert same(first, sent[0][1])


def test_the_iterator_keeps_no_tensor_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = tensors()
    simulated = Simulated(monkeypatch)
    found = to_device(sent, "cuda", headroom_bytes=0)
    _, first = next(found)
    simulated.do_copies()
    reference = weakref.ref(first)
    del first
    assert reference() is None


# ---- the benchmark's own parts -------------------------------------------------------------------


def test_the_benchmark_writes_files_that_safetensors_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from dray.weights import read_header
    from tests.gpu import weights_to_device as benchmark

    path = tmp_path / "model.safetensors"
    benchmark.write_model(path, 20 << 20, seed=1)
    found = read_header(path)
    assert 17 << 20 < path.stat().st_size < (20 << 20) + 100_000
    expected = load_file(path)
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    got = dict(benchmark.views(mapping, found))
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
        assert (tensor.dtype, tensor.shape) == (expected[name].dtype, expected[name].shape)
        assert torch.equal(benchmark._flat(tensor), benchmark._flat(expected[name]))
        assert not tensor.numel() or tensor.data_ptr() % tensor.element_size() == 0
    assert any(not tensor.numel() for tensor in got.values())
