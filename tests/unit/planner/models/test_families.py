"""Families against the classes of transformers: what a config may leave out, and counts of parameters."""

from __future__ import annotations

from typing import Any

import pytest

from dray.planner.models import Role, model_facts
from dray.planner.models.families import FAMILIES
from tests.support.hybrid_configs import LFM2_12B

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
    "moe_shared_expert_intermediate_size": 320,
}
MIXED = ["conv", "full_attention", "conv", "conv"] * 2
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in FAMILIES if kind != "lfm2_moe"),
    ("lfm2_moe", {"layer_types": MIXED}),
    ("lfm2", {"layer_types": MIXED, "block_ffn_dim_multiplier": 1.3}),
    ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba", "mamba"] * 2}),
    ("granitemoehybrid", {"num_local_experts": 0}),
    ("nemotron_h", {"hybrid_override_pattern": "MEM*-ME", "moe_latent_size": 64, "num_hidden_layers": 7}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_n_groups": 2}),
    ("kimi_linear", {"q_lora_rank": 96, "linear_head_dim": 32, "linear_num_heads": 4}),
    ("gemma4_text", {"num_kv_shared_layers": 3, "use_double_wide_mlp": True}),
    (
        "gemma4_text",
        {
            "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
            "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 128,
        },
    ),
    ("glm_moe_dsa", {"index_topk_freq": 4}),
    ("deepseek_v32", {"mlp_layer_types": ["dense", *["sparse"] * 7]}),
]  # fmt: skip
"""Kinds of layers that the defaults of a class do not have."""


LEFT_OPEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "lfm2_moe": {"layer_types": MIXED * 4},
}
"""What the class of a family knows no default of."""


def class_of(kind: str) -> Any:
    transformers = pytest.importorskip("transformers", minversion="5")
    if kind in WITHOUT_CLASS:
        pytest.skip("transformers has no class of it")
    return transformers.CONFIG_MAPPING[INSIDE.get(kind, kind)]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_config_may_leave_out_what_its_class_knows(kind: str) -> None:
    """As composite models are published: the text's config holds the differences from its class."""
    said = LEFT_OPEN.get(kind, {})
    whole = {**class_of(kind)(**said).to_dict(), "model_type": kind}
    bare = model_facts({"model_type": "llava", "text_config": {"model_type": kind, **said}})
    assert bare == model_facts(whole)


def model_of(kind: str, config: Any) -> Any:
    """The class's model, of which no weights are made."""
    from transformers import AutoModel
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel

    if kind == "qwen3_omni_moe_text":  # transformers' list of models has it as a part alone
        return Qwen3OmniMoeThinkerTextModel(config)
    return AutoModel.from_config(config)


def role_of(name: str) -> Role:
    """Of a parameter of a class."""
    if "embed" in name and "norm" not in name:
        return Role.EMBEDDING
    return Role.EXPERTS if ".experts." in name else Role.BODY


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("kind", "more"), VARIANTS, ids=[f"{kind}-{'-'.join(more)}".rstrip("-") for kind, more in VARIANTS]
)
def test_parameters_are_those_of_the_class(kind: str, more: dict[str, Any]) -> None:
    """By use, within the norms and biases that are not worth a formula."""
    torch, made = pytest.importorskip("torch"), class_of(kind)
    named = made(**TINY).to_dict()
    said = {name: value for name, value in WHERE_NAMED.items() if name in named}
    if FAMILIES[kind].latent:
        said.pop("head_dim", None)
    config = made(**TINY | said | more)
    with torch.device("meta"):
        model = model_of(kind, config)
    counted: dict[Role, int] = {}
    for name, one in model.named_parameters():
        counted[role_of(name)] = counted.get(role_of(name), 0) + one.numel()
    facts = model_facts({**config.to_dict(), "model_type": kind})
    for role, parameters in counted.items():
        ours = sum(part.parameters for part in facts.parts if part.role is role)
        assert ours == pytest.approx(parameters, rel=0.005), role


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
QWEN3_OMNI: dict[str, Any] = {
    "model_type": "qwen3_omni_moe",
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker", "audio_config": {}, "vision_config": {},
        "text_config": {
            "model_type": "qwen3_omni_moe_text", "head_dim": 128, "num_hidden_layers": 48,
            "num_attention_heads": 32, "vocab_size": 152064, "max_position_embeddings": 65536,
            "tie_word_embeddings": False,
        },
    },
    "talker_config": {"text_config": {"model_type": "qwen3_omni_moe_talker_text", "hidden_size": 1024}},
}  # fmt: skip
MINIMAX_M2: dict[str, Any] = {"model_type": "minimax_m2"}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (LLAVA_15_7B, 6.739),
        (PIXTRAL_12B, 12.248),
        (QWEN2_AUDIO_7B, 7.755),
        (SCOUT, 107.77),
        (MINIMAX_M2, 228.69),
        (QWEN3_OMNI, 30.533),
    ],
    ids=["LLaVA-1.5-7B", "Pixtral-12B", "Qwen2-Audio-7B", "Llama-4-Scout", "MiniMax-M2", "Qwen3-Omni-30B"],
)
def test_published_configs(config: dict[str, Any], billions: float) -> None:
    """The texts' parts of them; MiniMax's card says 229 billion, Llama 4's 109 with its eyes."""
    assert model_facts(config).parameters / 1e9 == pytest.approx(billions, rel=0.001)


def test_of_a_model_that_speaks_the_part_that_writes_is_planned() -> None:
    """Also its quantization, which the file names for the whole model."""
    facts = model_facts(QWEN3_OMNI | {"quantization_config": {"quant_method": "fp8"}})
    assert (facts.layers, facts.max_length, facts.format) == (48, 65536, "fp8")
    assert facts.notes == ("The vision and audio part of the model is not counted.",)


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


def test_the_width_of_lfm2_is_that_of_its_own_field() -> None:
    """As transformers reads it, whether the width is adjusted or not."""
    both = LFM2_12B | {"intermediate_size": 999}
    assert [model_facts(one).intermediate for one in (LFM2_12B, both)] == [8192, 8192]
    assert model_facts(both | {"block_auto_adjust_ff_dim": False}).intermediate == 12288


def test_a_list_of_layers_counts_before_a_pattern() -> None:
    """As transformers takes them for Nemotron-H; both of its names for the list."""
    pattern = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*E", "num_hidden_layers": 52}
    assert model_facts(pattern).layers == 3
    for name in ("layers_block_type", "layer_types"):
        assert model_facts(pattern | {name: ["mamba", "moe"]}).layers == 2


def test_coheres_length_is_the_one_that_vllm_takes() -> None:
    facts = model_facts({"model_type": "cohere", "model_max_length": 131072})
    assert (facts.max_length, facts.most_length) == (131072, 131072)
