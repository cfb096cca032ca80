"""Rows 1 to 6: files that are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.errors import WeightsError
from dray.weights import LocalModel, check_remote, read_manifest
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.source.checkpoint import INDEX
from tests.integration.weights.bad_inputs.support import (
    FIRST,
    SECOND,
    URI,
    arrives,
    index_file,
    known,
    refused_before_it_is_fetched,
    shard,
    tensor,
)
from tests.support.checkpoints import Stored, write_file
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (lambda data: data[:-1], r"model-2\.safetensors: truncated: tensors take 4,000,000 bytes"),
        (lambda data: data[: len(data) // 2], r"model-2\.safetensors: truncated"),
        (lambda data: data[:40], r"model-2\.safetensors: truncated: a header of 72 bytes in a file of 40"),
        (lambda data: data[:5], r"model-2\.safetensors: 5 bytes are too few"),
        (lambda data: b"", r"model-2\.safetensors: 0 bytes are too few"),
        (lambda data: data + b"\0", r"model-2\.safetensors: longer than its header says"),
    ],
    ids=["a byte", "half", "in the header", "in the length", "all", "one too many"],
)
def test_row_01_a_truncated_file(
    cut: Callable[[bytes], bytes], says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / SECOND).write_bytes(cut((origin / SECOND).read_bytes()))
    refused_before_it_is_fetched(server, cache, says)


def _sparse(path: Path, start: bytes, size: int) -> None:
    path.write_bytes(start)
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (shard(b""), "its header is not valid"),
        (shard(b"{}", length=2**63), "not a safetensors file, or damaged: its header would have"),
        (shard(b"{}", length=1000), "truncated: a header of 1,000 bytes in a file of 10"),
        (shard(b"\xff\xfe{}"), "its header is not valid"),
        (shard(b"{'a': 1}"), "its header is not valid"),
        (shard(b"[]"), "its header is not a JSON object"),
        (shard(b"[" * 100_000), "nested too deeply|not valid"),
        (shard(b'{"head":1,"head":1}'), "'head' stands in it twice"),
        (shard({"head": tensor("F7")}, b"00"), "tensor 'head': unknown dtype 'F7'"),
        (shard({"head": tensor(shape=[2.0])}, b"00"), "tensor 'head': shape and data_offsets are not"),
    ],
    ids=[
        "empty",
        "2^63",
        "beyond the file",
        "no text",
        "no JSON",
        "a list",
        "deep",
        "twice",
        "dtype",
        "shape",
    ],
)
def test_row_02_a_damaged_header(
    content: bytes, says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / SECOND).write_bytes(content)
    refused_before_it_is_fetched(
        server, cache, rf"model-2\.safetensors: ({says})|model-2\.safetensors: .*{says}"
    )


def test_row_02_a_header_of_more_than_100_mb_is_not_even_read(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    _sparse(origin / SECOND, shard(b"{", length=100_000_001), 200_000_000)
    with pytest.raises(WeightsError, match=r"model-2\.safetensors: .* header would have 100,000,001 bytes"):
        check_remote(known(server), server.options)
    assert sum(server.served().values()) < 1e6


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        ({"head": tensor(), "b": tensor()}, b"00", "starts at 0, which overlaps the one before"),
        ({"head": tensor(offsets=[1, 3])}, b"000", "starts at 1, which leaves a gap before it"),
        ({"head": tensor(offsets=[-2, 0])}, b"00", "-2 is no 64-bit count"),
        ({"head": tensor(offsets=[2, 0])}, b"00", "ends at 0, before its start at 2"),
        ({"head": tensor(shape=[2**63, 4, 0], offsets=[0, 0])}, b"", "overflows"),
        ({"head": tensor(shape=[2**64])}, b"00", "is no 64-bit count"),
        ({"head": tensor(shape=[3])}, b"00", r"2 bytes of data for U8 \[3\]"),
        ({"head": tensor("F4", [3])}, b"00", "does not end on a byte"),
    ],
    ids=["overlap", "gap", "negative", "backwards", "overflow", "no count", "span", "half a byte"],
)
def test_row_03_offsets_that_cannot_be(
    header: dict[str, Any], data: bytes, says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / SECOND).write_bytes(shard(header, data))
    refused_before_it_is_fetched(server, cache, rf"model-2\.safetensors: .*{says}")


def test_row_04_tensors_that_are_not_aligned_are_copied(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    torch = pytest.importorskip("torch")
    data = np.random.default_rng(3).random(1000).astype(np.float32).tobytes()
    tensors = {"four": Stored("U8", (4,), b"abcd"), "head": Stored("F32", (1000,), data)}
    write_file(origin / SECOND, tensors, aligned=False)
    (origin / INDEX).write_text(json.dumps({"weight_map": {"embed": FIRST, "head": SECOND, "four": SECOND}}))
    manifest = known(server)
    check_remote(manifest, server.options)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        found = dict(weights.tensors())
    assert found["head"].numpy().tobytes() == data
    assert found["head"].data_ptr() % 4 == 0
    assert found["four"].numpy().tobytes() == b"abcd"
    assert found["embed"].dtype is torch.float32
    assert len(found) == 3


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (index_file(embed=FIRST, head="m-3.safetensors"), r"m-3\.safetensors(: missing|, which is missing)"),
        (index_file(embed=FIRST, head=FIRST), "tensor 'head' is not in model-1.safetensors"),
        (index_file(embed=SECOND, head=FIRST), "tensor 'embed' is not in model-2.safetensors"),
        (index_file(embed=FIRST, head=SECOND, more=SECOND), "tensor 'more' is not in model-2.safetensors"),
        (index_file(embed=FIRST, head=SECOND, more=FIRST), "tensor 'more' is not in model-1.safetensors"),
    ],
    ids=["missing shard", "wrong shard", "exchanged", "one too many", "one too many in the other"],
)  # fmt: skip
def test_row_05_an_index_that_is_not_true(
    index: bytes, says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / INDEX).write_bytes(index)
    refused_before_it_is_fetched(server, cache, says)


@pytest.mark.parametrize("index", [b"", b"{}", b"[]", b"\xff", b'{"weight_map": ["a"]}', b"[" * 100_000])
def test_row_05_an_index_that_is_none(index: bytes, server: EmulatorProcess, origin: Path) -> None:
    (origin / INDEX).write_bytes(index)
    with pytest.raises(WeightsError, match=r"model\.safetensors\.index\.json: "):
        read_manifest(URI, server.options)


def test_row_05_files_that_the_index_does_not_name_are_not_read(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / "consolidated.safetensors").write_bytes(b"a second copy, and a broken one")
    manifest = known(server)
    check_remote(manifest, server.options)
    model = arrives(manifest, server.options, origin)
    assert not (model.paths.whole / "consolidated.safetensors").exists()
    assert not any(name.endswith("consolidated.safetensors") for name in server.served())


# -- 6: parameters ----------------------------------------------------------------------------


class UnquantizedLinearMethod:
    """Named as vLLM's: weights that it made are not initialised."""


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("down.weight", r"lacks weights, or parts of them, for down\.weight;"),
        ("k.weight", r"lacks weights, or parts of them, for qkv\.weight;"),
        ("norm.weight", r"lacks weights, or parts of them, for norm\.weight;"),
        (None, ""),
    ],
    ids=["a weight", "a part of a fused one", "a norm", "nothing"],
)
def test_row_06_a_parameter_that_is_never_loaded(
    lacking: str | None, says: str, server: EmulatorProcess, origin: Path
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from dray.weights.loading import vllm_loader

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rows: int, *, linear: bool = True) -> None:
            super().__init__()
            shape = (rows, 16) if linear else (rows,)
            self.weight = torch.nn.Parameter(torch.empty(shape), requires_grad=False)
            if linear:
                self.quant_method = UnquantizedLinearMethod()

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.down, self.norm = Layer(12), Layer(4), Layer(16, linear=False)

        def load_weights(self, weights: Iterator[tuple[str, Any]]) -> set[str]:
            own, loaded = dict(self.named_parameters()), set()
            for name, values in weights:
                if name[0] in "qkv":  # a third of the rows each
                    at = 4 * "qkv".index(name[0])
                    own["qkv.weight"][at : at + 4].copy_(values)
                    loaded.add("qkv.weight")
                else:
                    own[name].copy_(values)
                    loaded.add(name)
            return loaded

    numbers = np.random.default_rng(1)
    shapes = {f"{name}.weight": (4, 16) for name in ("q", "k", "v", "down")} | {"norm.weight": (16,)}
    tensors = {name: numbers.random(shape, np.float32) for name, shape in shapes.items() if name != lacking}
    (origin / INDEX).unlink()
    (origin / SECOND).unlink()
    save_file(tensors, origin / FIRST)
    with LocalModel(known(server), server.options) as model:
        config = type("Config", (), {"model": str(model.wait_engine())})
        if lacking is None:
            vllm_loader.load(Model(), config)
            return
        with pytest.raises(WeightsError, match=says) as raised:
            vllm_loader.load(Model(), config)
        assert str(raised.value).startswith(f"model {URI}: ")
