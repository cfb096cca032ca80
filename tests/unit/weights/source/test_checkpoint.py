"""A checkpoint of several files, its index, and what stands in the way of a model that lacks weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.errors import WeightsError
from dray.job.model_files import check_model
from dray.weights import check_checkpoint
from dray.weights.source.checkpoint import INDEX

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards and their index."""
    (tmp_path / "config.json").write_text("{}")
    save_file({"embed": np.zeros((4, 2), np.float32)}, tmp_path / "model-1.safetensors")
    save_file(
        {"head": np.ones(3, np.float16), "norm": np.ones((), np.int8)}, tmp_path / "model-2.safetensors"
    )
    _index(
        tmp_path,
        {"embed": "model-1.safetensors", "head": "model-2.safetensors", "norm": "model-2.safetensors"},
    )
    return tmp_path


def _index(folder: Path, places: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _says(folder: Path) -> str:
    with pytest.raises(WeightsError) as raised:
        check_model(str(folder))
    return str(raised.value).removeprefix(f"{folder}/")


def test_a_sound_one(folder: Path) -> None:
    headers = check_checkpoint(folder)
    assert {name: [t.name for t in header.tensors] for name, header in headers.items()} == {
        "model-1.safetensors": ["embed"],
        "model-2.safetensors": ["head", "norm"],
    }
    assert check_model(str(folder)) == folder


def test_files_that_the_index_does_not_name_are_left_alone(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"a second copy, and a broken one")
    assert "consolidated.safetensors" not in check_checkpoint(folder)


def test_a_missing_shard(folder: Path) -> None:
    (folder / "model-2.safetensors").unlink()
    assert _says(folder) == f"model-2.safetensors: missing, though {INDEX} names it"


def test_a_truncated_shard(folder: Path) -> None:
    shard = folder / "model-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    assert _says(folder).startswith("model-1.safetensors: truncated: tensors take 32 bytes, the file has 27")


def test_a_tensor_in_another_shard(folder: Path) -> None:
    _index(
        folder, {"embed": "model-1.safetensors", "head": "model-1.safetensors", "norm": "model-2.safetensors"}
    )
    assert _says(folder) == f"{INDEX}: tensor 'head' is not in model-1.safetensors"


def test_a_tensor_that_the_index_lacks(folder: Path) -> None:
    _index(folder, {"embed": "model-1.safetensors", "head": "model-2.safetensors"})
    assert _says(folder).startswith("model-2.safetensors: tensor 'norm' is not in")


@pytest.mark.parametrize(
    "file", ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "model.bin", ""]
)
def test_an_index_that_points_elsewhere(folder: Path, file: str) -> None:
    _index(folder, {"embed": file})
    assert "is not a safetensors file of this folder" in _says(folder)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"weight_map": 3}', b'{"weight_map": {"a": 3}}', b"\xff"]
)
def test_an_index_that_is_none(folder: Path, content: bytes) -> None:
    (folder / INDEX).write_bytes(content)
    assert _says(folder).startswith(f"{INDEX}: ")


def test_two_files_with_one_tensor_and_no_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    save_file({"embed": np.zeros(1, np.float32)}, folder / "model-2.safetensors")
    assert "tensor 'embed' is in model-1.safetensors and in model-2.safetensors" in _says(folder)
