"""Rows 16 and 17: odd models and evil ones."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.errors import ConfigError, WeightsError
from dray.weights import LocalModel, check_checkpoint, check_remote, read_manifest
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.node.cache import READY
from dray.weights.source.checkpoint import INDEX
from tests.integration.weights.bad_inputs.support import (
    FIRST,
    SECOND,
    URI,
    arrives,
    index_file,
    known,
    refused_before_it_is_fetched,
)
from tests.support.checkpoints import odd
from tests.support.reference import deserialize
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


@pytest.mark.heavy
def test_row_16_tensors_of_any_shape_name_and_number(server: EmulatorProcess, origin: Path) -> None:
    torch = pytest.importorskip("torch")
    for file in origin.iterdir():
        file.unlink()
    odd(origin, tiny=100_000)
    (origin / "merges.txt").write_text("")
    manifest = known(server)
    check_remote(manifest, server.options)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        found = dict(weights.tensors())
        model.wait_whole()
    stored = {
        name: stored
        for file in check_checkpoint(origin)
        for name, stored in deserialize((origin / file).read_bytes())
    }
    assert found.keys() == stored.keys()
    assert len(found) > 100_000
    for name, value in found.items():
        expected = stored[name]
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        assert data == bytes(expected["data"]), name
        if expected["dtype"] != "F4":
            assert list(value.shape) == expected["shape"], name


def test_row_16_the_same_tensor_in_two_files_needs_an_index(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / INDEX).unlink()
    save_file({"embed": np.zeros(4, np.float32)}, origin / SECOND)
    refused_before_it_is_fetched(server, cache, "tensor 'embed' is in model-1.safetensors and in model-2")


@pytest.mark.parametrize(
    "name",
    [
        "../m2/model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        "",
        "model.bin",
        "model.safetensors\0",
    ],
)
def test_row_17_an_index_that_leads_out_of_the_folder(
    name: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / INDEX).write_bytes(index_file(embed=FIRST, head=name))
    with pytest.raises(WeightsError, match=r"tensor 'head': .* is not a safetensors file of this folder"):
        read_manifest(URI, server.options)
    assert not cache.exists()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/pwned-by-a-test",)


def test_row_17_pickles_are_neither_read_nor_loaded(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "modeling_evil.py"):
        (origin / name).write_bytes(pickle.dumps(Evil()))
    model = arrives(known(server), server.options, origin)
    names = {file.name for file in model.paths.whole.iterdir()}
    assert names == {"config.json", "merges.txt", FIRST, SECOND, INDEX, READY, ".dray-model.json"}
    (origin / INDEX).unlink()
    (origin / SECOND).write_bytes(pickle.dumps(Evil()))  # under another name
    server.behave()
    refused_before_it_is_fetched(server, cache, r"model-2\.safetensors: ")
    for name in (FIRST, SECOND):
        (origin / name).unlink()
    with pytest.raises(ConfigError, match="its weights are pickle files"):
        read_manifest(URI, server.options)
    assert not Path("/tmp/pwned-by-a-test").exists()


@pytest.mark.parametrize("name", [".dray-model.json", ".dray-ready"])
def test_row_17_a_model_that_brings_files_of_ours(name: str, server: EmulatorProcess, origin: Path) -> None:
    """What says which chunks there are must not come from the model."""
    (origin / name).write_text(json.dumps({"uri": "evil", "chunk_bytes": 1 << 40, "files": []}))
    manifest = known(server)
    assert name not in {file.name for file in manifest.files}
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        assert weights.name == URI
        assert len(list(weights.tensors())) == 2


def test_row_17_a_config_that_is_too_deep(server: EmulatorProcess, origin: Path) -> None:
    (origin / "config.json").write_text("[" * 100_000)
    with pytest.raises(WeightsError, match=r"config\.json: not valid JSON"):
        check_remote(known(server), server.options)


def test_row_17_links_in_a_local_folder(origin: Path, tmp_path: Path) -> None:
    """Hubs' own caches consist of them; what they lead to must be there, and be weights."""
    pytest.importorskip("torch")
    folder = tmp_path / "model"
    folder.mkdir()
    for file in origin.iterdir():
        (folder / file.name).symlink_to(file)
    assert [name for name, _ in StreamedWeights.of(folder).tensors()] == ["embed", "head"]
    for target, says in (
        (tmp_path / "nowhere", r"model-2\.safetensors: missing"),
        (folder / SECOND, r"model-2\.safetensors: "),  # in a circle
        (Path("/etc/passwd"), r"model-2\.safetensors: "),
        (Path("/dev/null"), r"model-2\.safetensors: 0 bytes are too few"),
        (tmp_path, r"model-2\.safetensors: "),
    ):
        (folder / SECOND).unlink()
        (folder / SECOND).symlink_to(target)
        with pytest.raises(WeightsError, match=says):
            check_checkpoint(folder)
        with pytest.raises(WeightsError, match=says):
            StreamedWeights.of(folder)
