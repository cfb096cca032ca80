"""Families against the classes of transformers: what a config may leave out, and counts of parameters."""

from __future__ import annotations

from typing import Any

import pytest

from dray.errors import ConfigError
from dray.planner.models import model_facts
from dray.planner.models.families import FAMILIES

pytestmark = pytest.mark.unit

WITHOUT_CLASS = {"kimi_k2"}
INSIDE = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Families whose older configs have the text's fields outside; the class of the text inside."""
TINY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "vocab_size": 1000,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
WHERE_NAMED = {
    "head_dim": 32,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 128,
    "intermediate_size_mlp": 384,
    "shared_expert_intermediate_size": 192,
    "shared_intermediate_size": 192,
}


def class_of(kind: str) -> Any:
    transformers = pytest.importorskip("transformers", minversion="5")
    if kind in WITHOUT_CLASS:
        pytest.skip("transformers has no class of it")
    return transformers.CONFIG_MAPPING[INSIDE.get(kind, kind)]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_config_may_leave_out_what_its_class_knows(kind: str) -> None:
    """As composite models are published: the text's config holds the differences from its class."""
    said = {"num_experts_per_tok": 6} if kind == "deepseek_v2" else {}  # its class knows none
    whole = {**class_of(kind)(**said).to_dict(), "model_type": kind}
    bare = model_facts({"model_type": "llava", "text_config": {"model_type": kind, **said}})
    assert bare == model_facts(whole)


@pytest.mark.parametrize("kind", FAMILIES)
def test_parameters_are_those_of_the_class(kind: str) -> None:
    """Within the norms and biases that are not worth a formula."""
    torch, made = pytest.importorskip("torch"), class_of(kind)
    from transformers import AutoModel

    named = made(**TINY).to_dict()
    said = {name: value for name, value in WHERE_NAMED.items() if name in named}
    if FAMILIES[kind].latent:
        said.pop("head_dim")
    config = made(**TINY, **said)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    tied = getattr(config, "tie_word_embeddings", False)
    head = 0 if tied else config.vocab_size * config.hidden_size
    parameters = sum(one.numel() for one in model.parameters()) + head
    assert model_facts({**config.to_dict(), "model_type": kind}).parameters == pytest.approx(
        parameters, rel=0.005
    )


def test_a_name_in_the_file_counts_before_the_default_of_another() -> None:
    """Classes know some fields by two names."""
    facts = model_facts({"model_type": "qwen3_moe", "num_experts": 16})
    assert facts.experts == 16


def test_null_is_no_default() -> None:
    """Mistral 7B v0.3 has no window, though its class has one."""
    assert [one.window for one in model_facts({"model_type": "mistral"}).attention] == [4096]
    facts = model_facts({"model_type": "mistral", "sliding_window": None})
    assert [one.window for one in facts.attention] == [None]


LLAVA_15_7B: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {},
}
PIXTRAL_12B: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {
        "model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40,
        "max_position_embeddings": 1024000, "num_key_value_heads": 8, "vocab_size": 131072,
        "sliding_window": None, "is_composition": True,
    },
    "vision_config": {},
}  # fmt: skip
QWEN2_AUDIO_7B: dict[str, Any] = {
    "model_type": "qwen2_audio",
    "text_config": {
        "model_type": "qwen2", "intermediate_size": 11008, "max_position_embeddings": 8192,
        "vocab_size": 156032,
    },
    "audio_config": {},
}  # fmt: skip
SCOUT: dict[str, Any] = {
    "model_type": "llama4",
    "text_config": {"model_type": "llama4_text", "max_position_embeddings": 10485760},
}
MINIMAX_M2: dict[str, Any] = {"model_type": "minimax_m2"}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (LLAVA_15_7B, 6.739),
        (PIXTRAL_12B, 12.248),
        (QWEN2_AUDIO_7B, 7.755),
        (SCOUT, 107.77),
        (MINIMAX_M2, 228.69),
    ],
    ids=["LLaVA-1.5-7B", "Pixtral-12B", "Qwen2-Audio-7B", "Llama-4-Scout", "MiniMax-M2"],
)
def test_published_configs(config: dict[str, Any], billions: float) -> None:
    """The texts' parts of them; MiniMax's card says 229 billion, Llama 4's 109 with its eyes."""
    assert model_facts(config).parameters / 1e9 == pytest.approx(billions, rel=0.001)


def test_a_hybrid_model_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'nemotron_h' .* not known .* dray run needs no plan"):
        model_facts({"model_type": "nemotron_h"})


@pytest.mark.parametrize(
    ("kind", "windows"),
    [
        ("llama4_text", {None: 12, 8192: 36}),
        ("cohere2", {None: 10, 4096: 30}),
        ("olmo3", {None: 8, 4096: 24}),
    ],
)
def test_layers_with_a_window_or_chunks(kind: str, windows: dict[int | None, int]) -> None:
    assert {one.window: one.layers for one in model_facts({"model_type": kind}).attention} == windows


def test_coheres_length_is_the_one_that_vllm_takes() -> None:
    facts = model_facts({"model_type": "cohere", "model_max_length": 131072})
    assert (facts.max_length, facts.most_length) == (131072, 131072)
