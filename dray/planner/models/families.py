"""How the decoders of each family differ from a Llama: biases, norms, experts, windows, missing fields.

Read from the model classes of Hugging Face transformers 4.57 (``models/*/modeling_*.py`` and
``configuration_*.py``); ``tests/unit/planner/models`` holds the counts to published ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``layer_norms``: norms of width ``hidden`` per layer. ``window_period``: each n-th layer sees all
    tokens, and none does where it is 1. ``defaults`` are those of the configuration class.
    """

    qkv_bias: bool = False
    qk_norm: bool = False
    layer_norms: int = 2
    sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    latent: bool = False
    window_period: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GEMMA_2 = {
    "tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096, "vocab_size": 256000,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192,
}  # fmt: skip
_GEMMA_3 = {
    "tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096, "vocab_size": 262208,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
}  # fmt: skip
_DEEPSEEK = Family(latent=True, router_bias=True, defaults={"max_position_embeddings": 163840})
_NO_WINDOW = {"use_sliding_window": False}  # Qwen configs name a window that is not used unless they say so
_QWEN2 = Family(qkv_bias=True, defaults=_NO_WINDOW)
_QWEN3 = Family(qk_norm=True, defaults=_NO_WINDOW)
_MOE = Family(qk_norm=True, defaults={"num_experts_per_tok": 8, **_NO_WINDOW})

FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(defaults={"num_experts_per_tok": 2}),
    "phi3": Family(defaults={"original_max_position_embeddings": 4096}),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": Family(qkv_bias=True, defaults={"num_experts_per_tok": 4, **_NO_WINDOW}),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _MOE,
    "qwen3_vl_moe_text": _MOE,
    "gemma2": Family(layer_norms=4, window_period=2, defaults=_GEMMA_2),
    "gemma3_text": Family(layer_norms=4, qk_norm=True, window_period=6, defaults=_GEMMA_3),
    "deepseek_v2": Family(latent=True),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "gpt_oss": Family(sinks=True, expert_bias=True, router_bias=True, window_period=2),
}
"""By the ``model_type`` of the config."""
