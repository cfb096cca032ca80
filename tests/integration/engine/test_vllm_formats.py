"""The formats that dray names to vLLM by the files of a model's folder, in vLLM's own configuration."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dray.engine.protocol import EngineSpec
from dray.kinds import Kind
from dray.weights import read_manifest
from tests.support.checkpoints import llama, sharded
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [pytest.mark.integration, pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")]


def arguments(model: Path, **given: Any) -> dict[str, Any]:
    from dray.engine.vllm_adapter.arguments import engine_arguments

    spec = EngineSpec(name="vllm", model=str(model), kind=Kind.COMPLETION, arguments=given)
    return engine_arguments(spec, {"model": str(model)}, cpu=True)


def test_second_copies_beside_the_single_file(tmp_path: Path) -> None:
    model = llama(tmp_path / "model")
    assert arguments(model)["load_format"] == "safetensors"
    (model / "model.fp16.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    assert arguments(model)["load_format"] == "dray"
    assert arguments(model, load_format="dummy")["load_format"] == "dummy"


def mistral(folder: Path) -> Path:
    """Shards, an index, ``consolidated.safetensors``, and the config of a model of Mistral's that sees."""
    model = sharded(folder)
    (model / "generation_config.json").write_text("{}")
    params = {
        "dim": 64, "n_layers": 12, "head_dim": 32, "hidden_dim": 128, "n_heads": 2, "n_kv_heads": 1,
        "norm_eps": 1e-5, "vocab_size": 100, "max_position_embeddings": 128,
        "vision_encoder": {"hidden_size": 64, "image_size": 64, "patch_size": 16},
    }  # fmt: skip
    (model / "params.json").write_text(json.dumps(params))
    return model


def architecture(found: dict[str, Any]) -> str:
    from vllm.transformers_utils.config import get_config

    named = found.get("config_format", "auto")
    return str(get_config(found["model"], False, config_format=named).architectures[0])


def test_config_and_weights_are_of_one_format(tmp_path: Path) -> None:
    model = mistral(tmp_path / "both")
    assert architecture({"model": str(model)}) == "PixtralForConditionalGeneration", "vLLM's own choice"
    found = arguments(model)
    assert found["load_format"] == "safetensors"
    assert architecture(found) == "LlamaForCausalLM"
    assert architecture(arguments(model, config_format="auto")) == "LlamaForCausalLM"
    found = arguments(model, load_format="mistral")
    assert architecture(found) == "PixtralForConditionalGeneration"


def test_mistrals_format_alone(tmp_path: Path) -> None:
    model = mistral(tmp_path / "native")
    for file in model.glob("model*"):
        file.unlink()
    found = arguments(model)
    assert found["load_format"] == "mistral"
    assert architecture(found) == "PixtralForConditionalGeneration"


@pytest.mark.parametrize("place", ["s3://bucket/m", "http", "hf://org/m"])
def test_the_tokenizer_is_that_of_the_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from vllm.tokenizers.registry import resolve_tokenizer_args

    from dray.engine.vllm_adapter.arguments import engine_arguments

    whole = mistral(tmp_path / "root/bucket/m")
    (whole / "tekken.json").write_text("{}")
    shutil.copytree(whole, tmp_path / "root/hub/org/m")
    server = EmulatorProcess(tmp_path / "root")
    try:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
        manifest = read_manifest(f"{server.url}/bucket/m" if place == "http" else place, server.options)
    finally:
        server.stop()
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    for file in manifest.files:
        shutil.copy(whole / file.name, fetched)
    spec = EngineSpec(name="vllm", model=place, kind=Kind.COMPLETION, weights=manifest)
    found = engine_arguments(spec, {"model": str(fetched)}, cpu=True)
    assert resolve_tokenizer_args(str(fetched))[0] == "hf", "vLLM's own choice, without what was left out"
    assert resolve_tokenizer_args(str(whole))[0] == found["tokenizer_mode"] == "mistral"


def test_what_is_fetched_from_an_address_is_of_hugging_faces_format(tmp_path: Path) -> None:
    """``params.json`` comes along; without ``consolidated*`` vLLM does not take it."""
    model = mistral(tmp_path / "fetched")
    (model / "consolidated.safetensors").unlink()
    assert architecture({"model": str(model)}) == "LlamaForCausalLM"
