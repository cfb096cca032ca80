"""How the decoders of each family differ from a Llama: biases, norms, experts, windows.

Read from the model classes of Hugging Face transformers 5 (``models/*/modeling_*.py``);
``tests/unit/planner/models`` holds the counts to published ones, and to those of the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """What a family's recurrent layers are."""

    MAMBA2 = "Mamba 2"
    DELTA = "Gated DeltaNet"
    KDA = "Kimi Delta Attention"
    CONVOLUTION = "a short convolution"


class Pattern(StrEnum):
    """Which layers of a family are recurrent, where ``layer_types`` does not say it."""

    WINDOWS = "none, but some may have windows"
    EVERY_NTH = "all but each full_attention_interval-th"
    KIMI = "all but those of linear_attn_config"
    INDICES = "all but those of full_attn_idxs"
    NAMED = "layer_types must say it"
    ALL = "all"
    BOTH = "all, each beside attention"
    BLOCKS = "a layer has a mixer or an MLP: layers_block_type, or hybrid_override_pattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``layer_norms``: norms of width ``hidden`` per layer. ``window_period``: each n-th layer sees all
    tokens, and none does where it is 1; ``last_sees_all``: the last one does, too. ``gated``: an MLP has
    three matrices, else two. ``shared_expert``: one more expert, of the same width, that reads every token;
    ``shared_gate``: it has a gate. ``query_gate``: queries come with a gate as wide. ``dense_width``: the
    field with the width of dense MLPs, where ``intermediate_size`` is that of experts. ``unknown``: fields of
    another model under the same name, which is not counted. ``layers``: the module that holds the layers;
    ``modules``: of one layer, by the name of the part, where they are not called as Llama's.
    """

    qkv_bias: bool = False
    qk_norm: bool = False
    layer_norms: int = 2
    sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    latent: bool = False
    window_period: int = 1
    gated: bool = True
    shared_expert: bool = False
    shared_gate: bool = False
    query_gate: bool = False
    dense_width: str = "intermediate_size_mlp"
    recurrent: State | None = None
    pattern: Pattern = Pattern.WINDOWS
    last_sees_all: bool = False
    unknown: tuple[str, ...] = ()
    layers: str = "model.layers"
    modules: Mapping[str, str] = field(default_factory=dict)


_PLAIN = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN2_MOE = Family(qkv_bias=True, shared_gate=True)
_QK_NORM = Family(qk_norm=True)
_DEEPSEEK = Family(latent=True, router_bias=True)
_QWEN3_NEXT = Family(
    qk_norm=True,
    query_gate=True,
    shared_gate=True,
    recurrent=State.DELTA,
    pattern=Pattern.EVERY_NTH,
    modules={"recurrent": "linear_attn.out_proj"},
)
_LFM2_MODULES = {
    "self_attn": "self_attn.out_proj",
    "recurrent": "conv.out_proj",
    "mlp": "feed_forward.w2",
    "experts": "feed_forward.experts.0.w2",
}

FAMILIES = {
    "llama": _PLAIN,
    "mistral": _PLAIN,
    "ministral": _PLAIN,
    "ministral3": _PLAIN,
    "mixtral": _PLAIN,
    "phi3": _PLAIN,
    "phimoe": _PLAIN,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": _QK_NORM,
    "qwen3_vl_text": _QK_NORM,
    "qwen3_moe": _QK_NORM,
    "qwen3_vl_moe_text": _QK_NORM,
    "qwen3_omni_moe_text": _QK_NORM,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "gemma": _PLAIN,
    "gemma2": Family(layer_norms=4, window_period=2),
    "gemma3_text": Family(layer_norms=4, qk_norm=True, window_period=6),
    "gemma4_text": Family(layer_norms=4, qk_norm=True, window_period=6, last_sees_all=True),
    "deepseek_v2": Family(latent=True),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "kimi_linear": Family(
        latent=True,
        router_bias=True,
        recurrent=State.KDA,
        pattern=Pattern.KIMI,
        unknown=("routed_expert_hidden_size", "mla_use_output_gate", "attn_res_block_size"),
        modules={"recurrent": "self_attn.o_proj"},
    ),
    "gpt_oss": Family(sinks=True, expert_bias=True, router_bias=True, window_period=2),
    "llama4_text": Family(window_period=4, shared_expert=True),
    "glm": _PLAIN,
    "glm4": Family(layer_norms=4),
    "glm4_moe": Family(router_bias=True),
    "minimax_m2": Family(qk_norm=True, router_bias=True),
    "granite": _PLAIN,
    "granitemoe": _PLAIN,
    "granitemoeshared": _PLAIN,
    "granitemoehybrid": Family(
        recurrent=State.MAMBA2,
        pattern=Pattern.ALL,
        dense_width="shared_intermediate_size",
        modules={"recurrent": "mamba.out_proj", "mlp": "shared_mlp.output_linear"},
    ),
    "falcon_h1": Family(
        recurrent=State.MAMBA2,
        pattern=Pattern.BOTH,
        modules={"recurrent": "mamba.out_proj", "mlp": "feed_forward.down_proj"},
    ),
    "nemotron_h": Family(
        layer_norms=1,
        gated=False,
        router_bias=True,
        recurrent=State.MAMBA2,
        pattern=Pattern.BLOCKS,
        layers="backbone.layers",
        modules={
            "self_attn": "mixer.o_proj",
            "recurrent": "mixer.out_proj",
            "mlp": "mixer.down_proj",
            "experts": "mixer.experts.0.down_proj",
        },
    ),
    "lfm2": Family(qk_norm=True, recurrent=State.CONVOLUTION, pattern=Pattern.INDICES, modules=_LFM2_MODULES),
    "lfm2_moe": Family(
        qk_norm=True,
        router_bias=True,
        recurrent=State.CONVOLUTION,
        pattern=Pattern.NAMED,
        modules=_LFM2_MODULES,
    ),
    "olmo": Family(layer_norms=0),
    "olmo2": _QK_NORM,
    "olmo3": Family(qk_norm=True, window_period=4),
    "olmoe": _QK_NORM,
    "cohere": Family(layer_norms=1),
    "cohere2": Family(layer_norms=1, window_period=4),
    "exaone4": Family(qk_norm=True, window_period=4),
    "exaone_moe": Family(qk_norm=True, router_bias=True, window_period=4),
    "ernie4_5": _PLAIN,
    "ernie4_5_moe": Family(router_bias=True),
    "hunyuan_v1_dense": _QK_NORM,
    "hy_v3": Family(qk_norm=True, router_bias=True),
    "seed_oss": _PLAIN,
    "smollm3": _PLAIN,
    "apertus": Family(qk_norm=True, gated=False),
    "arcee": Family(gated=False),
    "nemotron": Family(gated=False),
    "starcoder2": Family(qkv_bias=True, gated=False),
}
"""By the ``model_type`` of the config."""
