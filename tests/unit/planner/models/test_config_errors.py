"""A config that cannot be used is refused, naming the file and the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.planner.models import model_facts, read_model
from tests.support.hybrid_configs import (
    DEEPSEEK_V32,
    GRANITE_4_H_SMALL,
    KIMI_LINEAR,
    NEMOTRON_3_NANO,
    QWEN3_NEXT,
)
from tests.support.model_configs import CONFIGS, DEEPSEEK_V3, LLAMA_8B, QWEN3_30B_A3B

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (LLAMA_8B, "model_type"),
        (LLAMA_8B, "num_hidden_layers"),
        (LLAMA_8B, "hidden_size"),
        (LLAMA_8B, "intermediate_size"),
        (LLAMA_8B, "num_attention_heads"),
        (LLAMA_8B, "vocab_size"),
        (LLAMA_8B, "max_position_embeddings"),
        (DEEPSEEK_V3, "kv_lora_rank"),
        (DEEPSEEK_V3, "v_head_dim"),
    ],
)
def test_a_missing_field_is_named(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"models/x/config.json: the field '{field}' is missing"):
        model_facts({**config, field: None}, file="models/x/config.json")


@pytest.mark.parametrize("value", [0, -1, "32", 1.5, True, [], 10**13])
def test_a_wrong_value_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"'num_hidden_layers' is .* a whole number above zero is expected"):
        model_facts({**LLAMA_8B, "num_hidden_layers": value})


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'qwen3_mo' .* cost model; known are llama"):
        model_facts({**LLAMA_8B, "model_type": "qwen3_mo"})


def test_more_experts_per_token_than_there_are() -> None:
    with pytest.raises(ConfigError, match="200 experts per token of 128"):
        model_facts({**QWEN3_30B_A3B, "num_experts_per_tok": 200})


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        read_model(tmp_path)
    for text, said in (("{", "not valid JSON"), ("[]", "not a JSON object"), ("\udcff", "not valid JSON")):
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ConfigError, match=said):
            read_model(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_any_value_in_any_field_is_read_or_refused(name: str, data: st.DataObject) -> None:
    config = dict(CONFIGS[name])
    inner = config
    if "text_config" in config:
        inner = config["text_config"] = dict(config["text_config"])
    for field in data.draw(st.lists(st.sampled_from([*inner, "sliding_window", "layer_types"]), max_size=3)):
        inner[field] = data.draw(JSON)
    try:
        model = model_facts(config)
    except ConfigError as error:
        assert str(error).startswith("config.json: ")
    else:
        assert model.parameters > 0
        assert model.weight_bytes > 0
        assert sum(one.layers * one.cached for one in model.attention) > 0 or model.recurrent


@pytest.mark.parametrize(
    ("config", "changed", "said"),
    [
        (NEMOTRON_3_NANO, {"hybrid_override_pattern": "MEX"}, "'hybrid_override_pattern' has a layer 'X'"),
        (QWEN3_NEXT, {"layer_types": ["linear_attention"]}, "'layer_types' names 1 layers of 48"),
        (LLAMA_8B, {"layer_types": ["mamba"] * 32}, "'layer_types' has layers that are unknown"),
        (LLAMA_8B, {"layer_types": ["lightning"] * 32}, "'layer_types' has a layer 'lightning'"),
        (GRANITE_4_H_SMALL, {"mamba_d_head": "auto", "mamba_n_heads": 100}, "'mamba_n_heads' is 100, which"),
        (NEMOTRON_3_NANO, {"mamba_ssm_cache_dtype": "fp4"}, "'mamba_ssm_cache_dtype' is 'fp4'; known"),
        (KIMI_LINEAR, {"mla_use_output_gate": True}, "'mla_use_output_gate' is there"),
        (DEEPSEEK_V32, {"indexer_types": ["some"] * 61}, "'indexer_types' does not name each"),
        (DEEPSEEK_V32, {"mlp_layer_types": ["dense"]}, "'mlp_layer_types' does not name each"),
    ],
)
def test_layers_that_are_not_known_are_refused(
    config: dict[str, Any], changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: the field {said}"):
        model_facts(config | changed)


def test_more_heads_than_there_is_width_for_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_attention_heads.* is 8,192, more than hidden_size \(4,096\)"):
        model_facts(LLAMA_8B | {"num_attention_heads": 8192, "num_key_value_heads": 8192})
