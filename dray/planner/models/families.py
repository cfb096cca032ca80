"""How the decoders of each family differ from a Llama: biases, norms, experts, windows.

Read from the model classes of Hugging Face transformers 5 (``models/*/modeling_*.py``);
``tests/unit/planner/models`` holds the counts to published ones, and to those of the classes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``layer_norms``: norms of width ``hidden`` per layer. ``window_period``: each n-th layer sees all
    tokens, and none does where it is 1. ``gated``: an MLP has three matrices, else two. ``shared_expert``:
    one more expert, of the same width, that reads every token.
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


_PLAIN = Family()
_QWEN2 = Family(qkv_bias=True)
_QK_NORM = Family(qk_norm=True)
_DEEPSEEK = Family(latent=True, router_bias=True)

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
    "qwen2_moe": _QWEN2,
    "qwen3": _QK_NORM,
    "qwen3_vl_text": _QK_NORM,
    "qwen3_moe": _QK_NORM,
    "qwen3_vl_moe_text": _QK_NORM,
    "gemma": _PLAIN,
    "gemma2": Family(layer_norms=4, window_period=2),
    "gemma3_text": Family(layer_norms=4, qk_norm=True, window_period=6),
    "deepseek_v2": Family(latent=True),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "gpt_oss": Family(sinks=True, expert_bias=True, router_bias=True, window_period=2),
    "llama4_text": Family(window_period=4, shared_expert=True),
    "glm": _PLAIN,
    "glm4": Family(layer_norms=4),
    "glm4_moe": Family(router_bias=True),
    "minimax_m2": Family(qk_norm=True, router_bias=True),
    "granite": _PLAIN,
    "granitemoe": _PLAIN,
    "granitemoeshared": _PLAIN,
    "olmo": Family(layer_norms=0),
    "olmo2": _QK_NORM,
    "olmo3": Family(qk_norm=True, window_period=4),
    "olmoe": _QK_NORM,
    "cohere": Family(layer_norms=1),
    "cohere2": Family(layer_norms=1, window_period=4),
    "exaone4": Family(qk_norm=True, window_period=4),
    "ernie4_5": _PLAIN,
    "ernie4_5_moe": Family(router_bias=True),
    "hunyuan_v1_dense": _QK_NORM,
    "seed_oss": _PLAIN,
    "smollm3": _PLAIN,
    "apertus": Family(qk_norm=True, gated=False),
    "arcee": Family(gated=False),
    "nemotron": Family(gated=False),
    "starcoder2": Family(qkv_bias=True, gated=False),
}
"""By the ``model_type`` of the config."""
