"""LoRA adapters are judged before anything starts: the argument, the folders, and how they fit the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dray.engine.adapters import adapter_folders, adapter_names, adapters_of, rank_for, with_absolute_folders
from dray.errors import ConfigError
from dray.job.options.checks import check_arguments
from dray.job.options.forms import EngineOptions
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from tests.support.lora import CONFIG, PREFIX, WEIGHTS, write_adapter

pytestmark = pytest.mark.unit

LAYER = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model of two layers, as far as its files say."""
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = [
        f"model.layers.{layer}.self_attn.{part}.weight" for layer in (0, 1) for part in ("q_proj", "v_proj")
    ]
    tensors = {name: np.zeros((6, 8), np.float32) for name in names}
    save_file(
        tensors | {"model.embed_tokens.weight": np.zeros((9, 8), np.float32)}, folder / "model.safetensors"
    )
    return folder


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return write_adapter(tmp_path / "support", base)


def said(arguments: dict[str, Any], model: Path | str) -> str:
    with pytest.raises(ConfigError) as refused:
        adapters_of(arguments, str(model))
    return str(refused.value)


def of(folder: Path, name: str = "support", **arguments: Any) -> dict[str, Any]:
    return {"lora_modules": {name: str(folder)}, **arguments}


def test_sound_adapters(adapter: Path, base: Path, tmp_path: Path) -> None:
    other = write_adapter(tmp_path / "b", base, rank=9, config={"init_lora_weights": "gaussian"})
    arguments = {"lora_modules": {"support": str(adapter), "b": str(other)}}
    assert [(one.name, one.rank) for one in adapters_of(arguments, str(base))] == [("support", 4), ("b", 9)]
    assert adapter_names(arguments) == {"support", "b"}
    assert adapters_of({"seed": 1}, str(base)) == []
    assert adapter_names({"seed": 1}) == adapter_names({"lora_modules": "x"}) == frozenset()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("support=/a", "'support=/a' is no object; write it as an object of names and folders"),
        ([{"name": "a", "path": "/a"}], "is no object; write it as an object"),
        ({}, "it names no adapter; leave it out"),
        ({"": "/a"}, "an adapter has an empty name"),
        ({" ": "/a"}, "an adapter has an empty name"),
        ({"a": 7}, "adapter 'a': '7' is no folder's path"),
        ({"a": ""}, "adapter 'a': '' is no folder's path"),
        (
            {"a": "s3://secret@bucket/a"},
            "adapter 'a': s3:// is an address, and dray fetches no adapters yet",
        ),
        ({"a": "hf://org/a"}, "copy it to a folder at the same path on every node"),
    ],
)
def test_the_argument_is_names_and_folders(given: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        adapter_folders({"lora_modules": given})
    assert str(refused.value).startswith("engine argument lora_modules: ")
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


def test_what_contradicts_the_adapters(adapter: Path, base: Path) -> None:
    assert "adapter 'llama': this is the name of the model itself" in said(of(adapter, "llama"), base)
    assert "adapter 'llama': this is" in said(of(adapter, "llama"), "s3://bucket/models/llama")
    assert said(of(adapter, enable_lora=False), base) == (
        "engine argument enable_lora=false contradicts lora_modules; leave one of them out"
    )
    two = {"lora_modules": {"a": str(adapter), "b": str(adapter)}, "max_cpu_loras": 1}
    assert "max_cpu_loras: 1 is less than the 2 adapters" in said(two, base)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"peft_type": "IA3"}, "its peft_type is 'IA3', and dray offers LORA adapters only"),
        ({"peft_type": None}, "its peft_type is 'None'"),
        ({"use_dora": True}, "it was trained with DoRA, which vLLM does not offer"),
        ({"modules_to_save": ["lm_head"]}, "whole modules beside the adapter (modules_to_save) other than"),
        ({"modules_to_save": ["score", "lm_head"]}, "other than a head for classes, which vLLM does not"),
        ({"modules_to_save": "score"}, "whole modules beside the adapter"),
        ({"bias": "all"}, "it has biases (bias: 'all'); vLLM takes none"),
        ({"lora_bias": True}, "a bias of the adapter"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            "init_lora_weights 'pissa_niter_4' goes with changed",
        ),
        ({"alora_invocation_tokens": [1]}, "Activated LoRA"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"use_bdlora": {"a": 1}}, "block-diagonal LoRA"),
        ({"use_qalora": True}, "QALoRA"),
        ({"trainable_token_indices": [1]}, "tokens of the adapter's own"),
        ({"r": 0}, "the ranks in adapter_config.json (r, rank_pattern) are not whole numbers above 0"),
        ({"r": None}, "the ranks in"),
        ({"r": 4.5}, "the ranks in"),
        ({"rank_pattern": {"q_proj": "8"}}, "the ranks in"),
        ({"lora_alpha": "x"}, "lora_alpha in adapter_config.json is not a number"),
        ({"r": 8}, f"tensor '{PREFIX}{LAYER}.lora_A.weight' has rank 4, and adapter_config.json says 8"),
    ],
)
def test_what_vllm_does_not_compute(config: dict[str, Any], told: str, base: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", base, config=config)
    found = said(of(folder), base)
    assert found.startswith(f"engine argument lora_modules: adapter 'support' in {folder}: ")
    assert told in found


def test_a_head_for_classes_may_be_whole(base: Path, tmp_path: Path) -> None:
    """PEFT names both in every adapter of a sequence classifier (task type SEQ_CLS)."""
    folder = write_adapter(tmp_path / "a", base, config={"modules_to_save": ["classifier", "score"]})
    assert [one.name for one in adapters_of(of(folder), str(base))] == ["support"]


def test_ranks_of_single_modules_count(base: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", base, config={"r": 2, "rank_pattern": {"q_proj": 4, "v_proj": 4}})
    assert adapters_of(of(folder), str(base))[0].rank == 4


def test_what_is_missing_or_damaged(adapter: Path, base: Path, tmp_path: Path) -> None:
    assert f"in {tmp_path}/x: no such directory; name the folder" in said(of(tmp_path / "x"), base)
    weights, config = (adapter / WEIGHTS).read_bytes(), (adapter / CONFIG).read_bytes()
    (adapter / WEIGHTS).write_bytes(weights[:-1])
    assert f"{adapter}/{WEIGHTS}: truncated: tensors take" in said(of(adapter), base)
    (adapter / WEIGHTS).write_bytes(weights[:40])
    assert f"{adapter}/{WEIGHTS}: truncated: a header of" in said(of(adapter), base)
    (adapter / WEIGHTS).write_bytes(b"\xff" * 100)
    assert "not a safetensors file, or damaged" in said(of(adapter), base)
    save_file({"w": np.zeros(2, np.float32)}, adapter / WEIGHTS)
    assert "holds no LoRA tensor, so it would change nothing" in said(of(adapter), base)
    (adapter / WEIGHTS).unlink()
    assert f"no {WEIGHTS} in it" in said(of(adapter), base)
    (adapter / "adapter_model.bin").write_bytes(b"x")
    assert "a pickle file (adapter_model.bin), which can run code when loaded" in said(of(adapter), base)
    (adapter / WEIGHTS).write_bytes(weights)
    assert adapters_of(of(adapter), str(base)), "a pickle beside safetensors is left alone"
    for text, told in ((b"{", "is not valid JSON"), (b"[]", "holds no JSON object")):
        (adapter / CONFIG).write_bytes(text)
        assert told in said(of(adapter), base)
    (adapter / CONFIG).unlink()
    assert "no adapter_config.json in it; is this the folder that PEFT saved?" in said(of(adapter), base)
    (adapter / CONFIG).write_bytes(config)
    assert adapters_of(of(adapter), str(base))


def test_an_adapter_of_another_model(adapter: Path, base: Path) -> None:
    """vLLM says nothing of a layer too many: it leaves that part of the adapter out."""
    tensors = load_file(adapter / WEIGHTS)
    deep = {name.replace("layers.1", "layers.7"): value for name, value in tensors.items()}
    save_file(deep, adapter / WEIGHTS)
    found = said(of(adapter), base)
    assert "it changes 'model.layers.7.self_attn.q_proj', which the model" in found
    assert "was the adapter trained on another model?" in found
    assert adapters_of(of(adapter), "s3://bucket/models/other"), "a model elsewhere cannot be compared"
    wide = tensors | {f"{PREFIX}{LAYER}.lora_A.weight": np.zeros((4, 10), np.float32)}
    save_file(wide, adapter / WEIGHTS)
    assert f"it is made for 10 inputs of '{LAYER}', and the model has 8" in said(of(adapter), base)
    tall = tensors | {f"{PREFIX}{LAYER}.lora_B.weight": np.zeros((7, 4), np.float32)}
    save_file(tall, adapter / WEIGHTS)
    assert f"it is made for 7 outputs of '{LAYER}', and the model has 6" in said(of(adapter), base)


def test_a_model_that_names_its_modules_otherwise_is_left_to_vllm(adapter: Path, base: Path) -> None:
    tensors = load_file(adapter / WEIGHTS)
    renamed = {
        name.replace("model.layers", "language_model.layers"): value for name, value in tensors.items()
    }
    save_file(renamed, adapter / WEIGHTS)
    assert adapters_of(of(adapter), str(base))


def test_the_least_rank_that_vllm_takes_is_chosen(adapter: Path, base: Path, tmp_path: Path) -> None:
    found = adapters_of(of(adapter), str(base))
    assert rank_for(found, {}, (1, 8, 16)) == 8
    assert rank_for(found, {"max_lora_rank": 16}, (1, 8, 16)) == 8, "what the user gave wins elsewhere"
    with pytest.raises(ConfigError, match="max_lora_rank: 2 is less than the rank 4 of the adapter"):
        rank_for(found, {"max_lora_rank": 2}, (1, 8, 16))
    with pytest.raises(ConfigError, match="its rank 4 is above 2, the most that vLLM takes"):
        rank_for(found, {}, (1, 2))


def test_folders_are_anchored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = {"lora_modules": {"a": "here/a", "b": "~/b", "c": "/c"}, "seed": 1}
    expected = {"a": f"{tmp_path}/here/a", "b": str(Path("~/b").expanduser()), "c": "/c"}
    assert with_absolute_folders(arguments) == {"lora_modules": expected, "seed": 1}
    request = JobRequest(input="x", model="m", output="o", engine=EngineOptions(arguments=arguments))
    assert request.anchored().engine.arguments["lora_modules"] == expected
    assert with_absolute_folders({"lora_modules": ["x"]}) == {"lora_modules": ["x"]}, "refused later"


class TestBeforeAnythingStarts:
    """What a job looks at when it is asked for, and opened."""

    Make = Callable[..., JobSettings]

    def test_all_of_it_on_a_local_cluster(self, make_settings: Make, adapter: Path, base: Path) -> None:
        settings = make_settings(engine="vllm", model=str(base), engine_arguments=of(adapter))
        check_arguments(settings, local=True)
        (adapter / WEIGHTS).unlink()
        for local in (True, False):
            with pytest.raises(ConfigError, match=f"no {WEIGHTS} in it"):
                check_arguments(settings, local=local)

    def test_a_folder_that_only_nodes_have(self, make_settings: Make, base: Path) -> None:
        settings = make_settings(engine="vllm", model=str(base), engine_arguments=of(Path("/nodes/a")))
        check_arguments(settings)
        with pytest.raises(ConfigError, match="no such directory"):
            check_arguments(settings, local=True)

    def test_a_rank_beyond_vllms(self, make_settings: Make, base: Path, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", base, rank=513)
        settings = make_settings(engine="vllm", model=str(base), engine_arguments=of(folder))
        with pytest.raises(ConfigError, match=r"its rank 513 is above 512, the most that vLLM takes"):
            check_arguments(settings, local=True)

    def test_the_simulated_engine_has_none(self, make_settings: Make, adapter: Path) -> None:
        with pytest.raises(ConfigError) as refused:
            check_arguments(make_settings(engine_arguments=of(adapter)))
        assert str(refused.value) == (
            "engine argument lora_modules: the simulated engine has no adapters; leave it out"
        )


def test_a_configuration_without_modules(base: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", base)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    assert "names no target_modules" in said(of(folder), base)
