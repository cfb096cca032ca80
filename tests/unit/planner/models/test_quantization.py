"""Bytes of quantized checkpoints, by what their configs say."""

from __future__ import annotations

from typing import Any

import pytest

from dray.errors import ConfigError
from dray.planner.models import ModelFacts, model_facts
from tests.support.hybrid_configs import NEMOTRON_3_NANO, QWEN3_NEXT
from tests.support.model_configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_8B

pytestmark = pytest.mark.unit

FP8_GROUP = {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}}
INT4_GROUP = {"weights": {"num_bits": 4, "type": "int", "group_size": 128}, "input_activations": None}
FORMS: dict[str, tuple[dict[str, Any], float]] = {
    "fp8": ({"quant_method": "fp8"}, 8),
    "compressed fp8": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": FP8_GROUP},
            "ignore": ["lm_head"],
        },
        8,
    ),
    "compressed int4": ({"quant_method": "compressed-tensors", "config_groups": {"g": INT4_GROUP}}, 4.16),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.16),
    "gptq of 8 bits, no groups": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
    "modelopt nvfp4": ({"quant_algo": "NVFP4"}, 4.5),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.16),
}


def quantized(said: dict[str, Any]) -> ModelFacts:
    return model_facts({**LLAMA_8B, "quantization_config": said})


@pytest.mark.parametrize("form", FORMS)
def test_linear_layers_take_the_bits_of_the_form(form: str) -> None:
    said, bits = FORMS[form]
    model = quantized(said)
    linear = 32 * (4096 * (4096 + 1024) * 2 + 3 * 4096 * 14336)
    others = model.parameters - linear
    assert model.weight_bytes == pytest.approx(linear * bits / 8 + 2 * others, rel=0.001)
    assert model.parameters == model_facts(LLAMA_8B).parameters


@pytest.mark.parametrize(
    "ignored",
    [
        ["model.layers.*.mlp.*"],
        ["re:.*mlp.*"],
        [f"model.layers.{number}.mlp" for number in range(32)],
        [f"model.layers.{number}.mlp.down_proj" for number in range(32)],
    ],
)
def test_ignored_modules_stay_as_they_are(ignored: list[str]) -> None:
    model = quantized({"quant_method": "fp8", "modules_to_not_convert": ignored})
    assert {part.format for part in model.parts if part.name == "mlp"} == {"bf16"}
    assert {part.format for part in model.parts if part.name == "self_attn"} == {"fp8"}


def test_a_share_of_the_layers_may_be_ignored() -> None:
    model = quantized({"quant_method": "fp8", "ignore": ["model.layers.0.mlp", "model.layers.31.mlp"]})
    counts = {part.format: part.parameters for part in model.parts if part.name == "mlp"}
    assert counts["bf16"] * 15 == counts["fp8"]


def test_modules_that_bitsandbytes_skips_stay_as_they_are() -> None:
    skipped = {"load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "model.layers.0.mlp"]}
    model = quantized({"quant_method": "bitsandbytes", **skipped})
    counts = {part.format: part.parameters for part in model.parts if part.name == "mlp"}
    assert counts["bf16"] * 31 == counts["int4"]


def test_blocks_of_compressed_tensors_are_those_of_fp8() -> None:
    """vLLM refuses to split either within a block (validate_fp8_block_shape)."""
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    said = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    assert quantized(said).block == quantized({"quant_method": "fp8", "weight_block_size": [128, 128]}).block
    assert quantized({**said, "config_groups": {"group_0": FP8_GROUP}}).block == 1


def test_layers_in_several_formats_are_refused() -> None:
    """The first group's bits for all: attention in fp8 before experts in NVFP4 made twice the bytes."""
    nvfp4 = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    for groups in ({"a": FP8_GROUP, "b": nvfp4}, {"a": nvfp4, "b": FP8_GROUP}):
        with pytest.raises(ConfigError, match=r"several formats \(fp8, nvfp4\).*dray run needs no plan"):
            quantized({"quant_method": "compressed-tensors", "config_groups": groups})
    alike = {"a": FP8_GROUP, "b": FP8_GROUP | {"targets": ["re:.*mlp.*"]}}
    assert quantized({"quant_method": "compressed-tensors", "config_groups": alike}).format == "fp8"


def of_groups(**weights: Any) -> dict[str, Any]:
    group = {"weights": {"num_bits": 4, "type": "int", **weights}, "input_activations": None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("said", "block"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 1),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 64}, 64),
        (of_groups(strategy="group", group_size=128), 128),
        (of_groups(group_size=32), 32),
        (of_groups(strategy="channel", group_size=-1), 1),
        (of_groups(strategy="channel"), 1),
    ],
)
def test_no_rank_gets_a_part_of_a_group(said: dict[str, Any], block: int) -> None:
    """vLLM refuses to split groups (verify_group_size_divides_partition, MarlinLinearKernel)."""
    assert quantized(said).block == block


def test_published_sizes_of_quantized_checkpoints() -> None:
    """gpt-oss-20b: 12.8 GiB (model card, arXiv 2508.10925, table 1)."""
    assert model_facts(GPT_OSS_20B).weight_bytes / 2**30 == pytest.approx(12.8, rel=0.01)
    assert model_facts(DEEPSEEK_V3).weight_bytes / 1e9 == pytest.approx(671, rel=0.01)


def test_another_format_replaces_unquantized_layers_alone() -> None:
    fp8 = model_facts(LLAMA_8B).in_format("fp8")
    assert fp8.weight_bytes == quantized({"quant_method": "fp8"}).weight_bytes
    gpt = model_facts(GPT_OSS_20B)
    assert gpt.in_format("mxfp4") is gpt


@pytest.mark.parametrize(
    ("said", "kv"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": None}, "bf16"),
        (FORMS["compressed fp8"][0] | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        (FORMS["compressed fp8"][0] | {"kv_cache_scheme": None}, "bf16"),
    ],
)
def test_the_cache_has_the_format_that_the_checkpoint_asks_for(said: dict[str, Any], kv: str) -> None:
    assert quantized(said).kv_format == kv


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"quant_method": "quip"}, "quant_method"),
        ({"quant_algo": "W3"}, "quant_algo"),
        ({"quant_method": "awq"}, "bits"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(said: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"config.json: .*{named}"):
        quantized(said)


@pytest.mark.parametrize(
    ("config", "ignored", "part", "share"),
    [
        (QWEN3_NEXT, ["re:.*linear_attn.*", "lm_head"], "recurrent", 0),
        (QWEN3_NEXT, ["re:.*linear_attn.*", "lm_head"], "self_attn", 1),
        (NEMOTRON_3_NANO, ["backbone.layers.0.mixer", "backbone.layers.5.mixer"], "recurrent", 22 / 23),
        (NEMOTRON_3_NANO, ["backbone.layers.0.mixer", "backbone.layers.5.mixer"], "self_attn", 5 / 6),
        (NEMOTRON_3_NANO, ["backbone.layers.0.mixer", "backbone.layers.5.mixer"], "experts", 1),
    ],
)
def test_layers_that_are_left_as_they_were_are_found_by_what_they_are(
    config: dict[str, Any], ignored: list[str], part: str, share: float
) -> None:
    quantized = {"quant_method": "compressed-tensors", "config_groups": {"g": FP8_GROUP}, "ignore": ignored}
    pieces = [
        one for one in model_facts(config | {"quantization_config": quantized}).parts if one.name == part
    ]
    fp8 = sum(one.parameters for one in pieces if one.format == "fp8")
    assert fp8 / sum(one.parameters for one in pieces) == pytest.approx(share, abs=1e-6)
