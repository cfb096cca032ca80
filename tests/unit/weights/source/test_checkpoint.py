"""A checkpoint of several files, its index, and what stands in the way of a model that lacks weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.errors import WeightsError
from dray.job.options.model_files import check_model
from dray.weights import check_checkpoint
from dray.weights.source.checkpoint import INDEX, SINGLE, leaves_mistrals
from dray.weights.source.content import content_digests
from dray.weights.source.listing import wanted_files
from dray.weights.source.modules import weight_files

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


VARIANTS = [
    "model.fp32-00001-of-00002.safetensors",
    "model.fp32-00002-of-00002.safetensors",
    "model.fp16.safetensors",
    "model-00001-of-00001.bf16.safetensors",
]
NATIVE = ["consolidated.safetensors", "consolidated-00001-of-00002.safetensors"]


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """As Whisper's repository: one file, and the same tensors in other precisions."""
    (tmp_path / "config.json").write_text("{}")
    for name in (SINGLE, *VARIANTS, *NATIVE):
        save_file({"embed": np.zeros(4, np.float32)}, tmp_path / name)
    (tmp_path / "model.safetensors.index.fp32.json").write_text("{}")
    return tmp_path


def test_without_an_index_the_single_file_counts_alone(copies: Path) -> None:
    assert list(check_checkpoint(copies)) == [SINGLE]
    assert check_model(str(copies)) == copies


def test_second_copies_are_not_fetched(copies: Path) -> None:
    names = {path.name for path in copies.iterdir()}
    found = wanted_files("m", names, lambda name: b"", lambda below: ())
    assert found == ["config.json", SINGLE, "model.safetensors.index.fp32.json"]


def test_fingerprints_leave_out_variants_that_no_engine_reads(copies: Path) -> None:
    assert weight_files(copies) == sorted([SINGLE, *NATIVE])  # load format mistral reads the native ones
    assert sorted(content_digests(copies)) == sorted([SINGLE, *NATIVE])


def test_fingerprints_of_a_folder_with_an_index_are_of_all_files(folder: Path) -> None:
    """As they were: jobs that an earlier version began go on."""
    save_file({"embed": np.zeros(4, np.float32)}, folder / "model.fp16.safetensors")
    assert weight_files(folder) == ["model-1.safetensors", "model-2.safetensors", "model.fp16.safetensors"]


def test_variants_alone_are_the_checkpoint(copies: Path) -> None:
    for name in (SINGLE, *VARIANTS[:2], VARIANTS[3], *NATIVE):
        (copies / name).unlink()
    assert list(check_checkpoint(copies)) == ["model.fp16.safetensors"]
    save_file({"embed": np.zeros(4, np.float32)}, copies / VARIANTS[0])
    assert f"tensor 'embed' is in {VARIANTS[2]} and in {VARIANTS[0]}, and there is no" in _says(copies)


def test_files_that_are_no_copies_by_their_names_still_count(copies: Path) -> None:
    save_file({"more": np.zeros(4, np.float32)}, copies / "more.safetensors")
    assert sorted(check_checkpoint(copies)) == [SINGLE, "more.safetensors"]
    save_file({"embed": np.zeros(4, np.float32)}, copies / "model-00001-of-00002.safetensors")
    assert "tensor 'embed' is in model-00001-of-00002.safetensors and in model.safetensors" in _says(copies)


@pytest.mark.parametrize("tokenizer", ["tekken.json", "tokenizer.model.v3", "tokenizer.model.v7m1"])
@pytest.mark.parametrize("native", [*NATIVE, f"original/{NATIVE[0]}"])
def test_a_model_in_both_formats_is_known_by_what_is_left_out(tokenizer: str, native: str) -> None:
    files = {"config.json", SINGLE, tokenizer}
    assert leaves_mistrals({*files, native}, files)
    assert not leaves_mistrals(files, files)
    assert not leaves_mistrals({*files, NATIVE[0]}, {*files, NATIVE[0]})
    assert not leaves_mistrals({"config.json", SINGLE, "tokenizer.model", native}, files)
