"""Which engine arguments follow from the files in a model's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.engine.weight_formats import formats_of, refuse_left_out, tokenizer_of
from dray.errors import ConfigError
from dray.weights import Manifest
from dray.weights.source.checkpoint import INDEX
from dray.weights.source.manifest import ModelFile

pytestmark = pytest.mark.unit

SINGLE = ("config.json", "model.safetensors")
VARIANTS = ("model.fp32-00001-of-00002.safetensors", "model.fp32-00002-of-00002.safetensors")


def folder(path: Path, *names: str) -> str:
    for name in names:
        (path / name).write_bytes(b"")
    return str(path)


@pytest.mark.parametrize("copies", [VARIANTS, ("model.fp16.safetensors",), ("consolidated.safetensors",)])
def test_a_folder_with_second_copies_is_loaded_by_dray(tmp_path: Path, copies: tuple[str, ...]) -> None:
    model = folder(tmp_path, *SINGLE, *copies)
    assert formats_of(model, {}) == {"load_format": "dray"}
    for loaded in ("dray", "dummy"):
        assert formats_of(model, {"load_format": loaded}) == {}


@pytest.mark.parametrize("load_format", ["safetensors", "Safetensors", "fastsafetensors", "runai_streamer"])
def test_a_format_that_would_read_all_copies_is_refused(tmp_path: Path, load_format: str) -> None:
    model = folder(tmp_path, *SINGLE, *VARIANTS)
    with pytest.raises(ConfigError, match=r"would read model\.fp32-00001.* leave load_format out"):
        formats_of(model, {"load_format": load_format})


@pytest.mark.parametrize(
    "names", [(), SINGLE, (*SINGLE, "more.safetensors"), (*SINGLE, *VARIANTS, INDEX), VARIANTS]
)
def test_other_folders_are_left_to_vllms_own_format(tmp_path: Path, names: tuple[str, ...]) -> None:
    model = folder(tmp_path, *names)
    assert formats_of(model, {}) == {}
    assert formats_of(model, {"load_format": "safetensors"}) == {}
    assert formats_of(f"{model}/none", {}) == {}


NATIVE = ("params.json", "consolidated.safetensors", "tekken.json")
SHARDS = ("config.json", INDEX, "model-00001-of-00001.safetensors")


def test_of_both_formats_hugging_faces_is_taken(tmp_path: Path) -> None:
    """Otherwise vLLM would put those weights into the class of Mistral's format, which lacks their names."""
    model = folder(tmp_path, *SHARDS, *NATIVE)
    assert formats_of(model, {}) == {"config_format": "hf"}
    assert formats_of(model, {"config_format": "auto"}) == {"config_format": "hf"}
    for load in ("safetensors", "dray", "dummy", "runai_streamer"):
        assert formats_of(model, {"load_format": load}) == {"config_format": "hf"}


def test_of_both_formats_in_single_files_too(tmp_path: Path) -> None:
    model = folder(tmp_path, *SINGLE, *NATIVE)
    assert formats_of(model, {}) == {"load_format": "dray", "config_format": "hf"}


def test_mistrals_format_is_taken_where_the_user_names_it(tmp_path: Path) -> None:
    model = folder(tmp_path, *SHARDS, *NATIVE)
    assert formats_of(model, {"load_format": "mistral"}) == {}  # vLLM then takes its config as well
    assert formats_of(model, {"config_format": "mistral"}) == {"load_format": "mistral"}
    assert formats_of(model, {"config_format": "hf"}) == {}
    assert formats_of(model, {"config_format": "mistral", "load_format": "safetensors"}) == {}


def test_mistrals_format_alone(tmp_path: Path) -> None:
    model = folder(tmp_path, "config.json", *NATIVE)
    assert formats_of(model, {}) == {"load_format": "mistral"}
    assert formats_of(model, {"config_format": "hf"}) == {}


def test_vllm_also_looks_for_mistrals_format_in_folders_below(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    folder(tmp_path / "original", "consolidated.safetensors")
    assert formats_of(folder(tmp_path, *SHARDS, "params.json"), {}) == {"config_format": "hf"}


def test_one_of_mistrals_files_alone_changes_nothing(tmp_path: Path) -> None:
    assert formats_of(folder(tmp_path, *SHARDS, "consolidated.safetensors"), {}) == {}
    (tmp_path / "consolidated.safetensors").unlink()
    assert formats_of(folder(tmp_path, "params.json"), {}) == {}


@pytest.mark.parametrize("name", ["load_format", "config_format"])
def test_mistrals_format_where_there_are_no_files_of_it(tmp_path: Path, name: str) -> None:
    model = folder(tmp_path, *SHARDS)
    with pytest.raises(ConfigError, match=rf"{name} mistral reads consolidated.* leave {name} out"):
        formats_of(model, {name: "mistral"})
    assert formats_of(model, {"load_format": "dummy", "config_format": "mistral"}) == {}


def manifest(*names: str) -> Manifest:
    return Manifest(
        uri="s3://b/m", files=tuple(ModelFile(name=name, size=1, etag="e") for name in sorted(names))
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"load_format": "mistral"},
        {"config_format": "mistral"},
        {"config_format": "Mistral", "load_format": "safetensors"},
    ],
)
def test_mistrals_format_at_an_address_that_has_both(arguments: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"s3://b/m: \w+_format mistral reads .* dray fetches none of"):
        refuse_left_out(manifest(*SHARDS, "params.json"), arguments)
    refuse_left_out(manifest("config.json", *NATIVE), arguments)


def test_other_formats_at_an_address() -> None:
    for arguments in ({}, {"config_format": "hf"}, {"config_format": "mistral", "load_format": "dummy"}):
        refuse_left_out(manifest(*SHARDS, "params.json"), arguments)


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ({}, {"tokenizer_mode": "mistral"}),
        ({"tokenizer_mode": "auto"}, {"tokenizer_mode": "mistral"}),
        ({"tokenizer_mode": "hf"}, {}),
        ({"tokenizer": "/other"}, {}),
    ],
)
def test_mistrals_tokenizer_at_an_address_that_has_both(
    arguments: dict[str, Any], mode: dict[str, str]
) -> None:
    whole = manifest(*SHARDS, "params.json", "tekken.json")
    assert tokenizer_of(replace(whole, leaves_mistrals=True), arguments) == mode
    assert tokenizer_of(whole, arguments) == {}
    assert tokenizer_of(None, arguments) == {}
