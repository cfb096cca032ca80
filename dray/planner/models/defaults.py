"""What a config may leave out: the defaults of the configuration classes of transformers 5, by model_type.

The ``text_config`` of a model that sees or hears is published as the differences from its class.
``tests/unit/planner/models/test_families.py`` holds them to the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _of(
    vocabulary: int,
    hidden: int,
    width: int | None,
    layers: int | None,
    heads: int,
    kv_heads: int | None,
    positions: int,
    **others: Any,
) -> dict[str, Any]:
    """``kv_heads`` None: as many as heads; a ``head_dim`` that is not here is hidden / heads."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        **others,
    }


_DELTA = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_MAMBA = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
}

# fmt: off
DEFAULTS: dict[str, Mapping[str, Any]] = {
    "llama": _of(32000, 4096, 11008, 32, 32, None, 2048),
    "mistral": _of(32000, 4096, 14336, 32, 32, 8, 131072, sliding_window=4096),
    "mixtral": _of(32000, 4096, 14336, 32, 32, 8, 131072, num_local_experts=8, num_experts_per_tok=2),
    "phi3": _of(32064, 3072, 8192, 32, 32, None, 4096, original_max_position_embeddings=4096),
    "qwen2": _of(151936, 4096, 22016, 32, 32, 32, 32768, use_sliding_window=False),
    "qwen2_vl_text": _of(152064, 8192, 29568, 80, 64, 8, 32768, use_sliding_window=False),
    "qwen2_5_vl_text": _of(152064, 8192, 29568, 80, 64, 8, 32768, use_sliding_window=False),
    "qwen2_moe": _of(
        151936, 2048, 5632, 24, 16, 16, 32768,
        num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632, use_sliding_window=False,
    ),
    "qwen3": _of(151936, 4096, 22016, 32, 32, 32, 32768, head_dim=128, use_sliding_window=False),
    "qwen3_vl_text": _of(151936, 4096, 22016, 32, 32, 32, 128000, head_dim=128, use_sliding_window=False),
    "qwen3_moe": _of(
        151936, 2048, 6144, 24, 32, 4, 32768,
        num_local_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        use_sliding_window=False,
    ),
    "qwen3_vl_moe_text": _of(
        151936, 2048, 5632, 24, 16, 16, 128000,
        tie_word_embeddings=True, num_local_experts=60, num_experts_per_tok=4,
        moe_intermediate_size=1408, use_sliding_window=False,
    ),
    "qwen3_omni_moe_text": _of(
        3584, 2048, 18944, 28, 28, 4, 32768,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
    "gemma": _of(256000, 3072, 24576, 28, 16, 16, 8192, head_dim=256, tie_word_embeddings=True),
    "gemma2": _of(
        256000, 2304, 9216, 26, 8, 4, 8192,
        head_dim=256, tie_word_embeddings=True, sliding_window=4096,
    ),
    "gemma3_text": _of(
        262208, 2304, 9216, 26, 8, 4, 131072,
        head_dim=256, tie_word_embeddings=True, sliding_window=4096,
    ),
    "deepseek_v2": _of(
        102400, 4096, 11008, 32, 32, None, 2048,
        n_routed_experts=64, moe_intermediate_size=1407, n_shared_experts=2, kv_lora_rank=512,
        q_lora_rank=1536, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
    ),
    "deepseek_v3": _of(
        129280, 7168, 18432, 61, 128, None, 4096,
        n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, n_shared_experts=1,
        first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64,
        qk_nope_head_dim=128, v_head_dim=128,
    ),
    "gpt_oss": _of(
        201088, 2880, 2880, 36, 64, 8, 131072,
        head_dim=64, sliding_window=128, attention_bias=True, num_local_experts=128,
        num_experts_per_tok=4,
    ),
    "ministral": _of(32000, 4096, 14336, 32, 32, 8, 131072, sliding_window=4096),
    "ministral3": _of(131072, 4096, 14336, 34, 32, 8, 262144, head_dim=128),
    "smollm3": _of(128256, 2048, 11008, 36, 16, 4, 32768, tie_word_embeddings=True, use_sliding_window=False),
    "granite": _of(32000, 4096, 11008, 32, 32, None, 2048),
    "granitemoe": _of(32000, 4096, 11008, 32, 32, None, 2048, num_local_experts=8, num_experts_per_tok=2),
    "granitemoeshared": _of(
        32000, 4096, 11008, 32, 32, None, 2048,
        num_local_experts=8, num_experts_per_tok=2,
    ),
    "olmo": _of(50304, 4096, 11008, 32, 32, None, 2048),
    "olmo2": _of(50304, 4096, 11008, 32, 32, None, 2048),
    "olmo3": _of(50304, 4096, 11008, 32, 32, None, 2048, sliding_window=4096),
    "olmoe": _of(50304, 2048, 2048, 16, 16, None, 4096, num_experts=64, num_experts_per_tok=8),
    "glm": _of(151552, 4096, 13696, 40, 32, 2, 131072, head_dim=128, attention_bias=True),
    "glm4": _of(151552, 4096, 13696, 40, 32, 2, 131072, head_dim=128, attention_bias=True),
    "glm4_moe": _of(
        151552, 4096, 10944, 46, 96, 8, 131072,
        n_routed_experts=128, num_experts_per_tok=8, moe_intermediate_size=1408, n_shared_experts=1,
        first_k_dense_replace=1,
    ),
    "minimax_m2": _of(
        200064, 3072, 1536, 62, 48, 8, 196608,
        head_dim=128, num_local_experts=256, num_experts_per_tok=8,
    ),
    "llama4_text": _of(
        202048, 5120, 8192, 48, 40, 8, 131072,
        head_dim=128, attention_chunk_size=8192, num_local_experts=16, num_experts_per_tok=1,
        intermediate_size_mlp=16384,
    ),
    "cohere": _of(256000, 8192, 22528, 40, 64, None, 8192, tie_word_embeddings=True),
    "cohere2": _of(256000, 8192, 22528, 40, 64, None, 8192, tie_word_embeddings=True, sliding_window=4096),
    "seed_oss": _of(155136, 4096, 27648, 64, 80, 8, 524288, head_dim=128, attention_bias=True),
    "ernie4_5": _of(103424, 1024, 3072, 18, 16, 2, 131072, head_dim=128, tie_word_embeddings=True),
    "ernie4_5_moe": _of(
        103424, 2560, 12288, 28, 20, 4, 131072,
        tie_word_embeddings=True, moe_num_experts=64, moe_k=6, moe_intermediate_size=1536,
        moe_num_shared_experts=2, moe_layer_start_index=1,
    ),
    "hunyuan_v1_dense": _of(290943, 4096, 11008, 32, 32, None, 2048),
    "exaone4": _of(102400, 4096, 16384, 32, 32, 32, 2048, sliding_window=4096),
    "apertus": _of(131072, 4096, 14336, 32, 32, None, 65536),
    "arcee": _of(32000, 2560, 18432, 32, 32, None, 4096),
    "nemotron": _of(256000, 6144, 24576, 32, 48, None, 4096),
    "starcoder2": _of(49152, 3072, 12288, 30, 24, 2, 4096, tie_word_embeddings=True),
    "phimoe": _of(32064, 4096, 6400, 32, 32, 8, 131072, num_local_experts=16, num_experts_per_tok=2),
    "qwen3_next": _of(
        151936, 2048, 5632, 48, 16, 2, 32768,
        head_dim=256, full_attention_interval=4, **_DELTA, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512, shared_expert_intermediate_size=512,
    ),
    "qwen3_5_text": _of(
        248320, 4096, 12288, 32, 16, 4, 32768, head_dim=256, full_attention_interval=4, **_DELTA,
    ),
    "qwen3_5_moe_text": _of(
        248320, 2048, None, 40, 16, 2, 32768,
        head_dim=256, full_attention_interval=4, **_DELTA, num_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=512, shared_expert_intermediate_size=512,
    ),
    "gemma4_text": _of(
        262144, 2304, 9216, 30, 8, 4, 131072,
        head_dim=256, global_head_dim=512, tie_word_embeddings=True, sliding_window=512,
        hidden_size_per_layer_input=256, vocab_size_per_layer_input=262144, enable_moe_block=False,
    ),
    "deepseek_v32": _of(
        129280, 7168, 18432, 61, 128, 128, 163840,
        n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, n_shared_experts=1,
        first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64,
        qk_nope_head_dim=128, v_head_dim=128, index_topk=2048, index_head_dim=128, index_n_heads=64,
    ),
    "glm_moe_dsa": _of(
        154880, 6144, 12288, 78, 64, 64, 202752,
        n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, n_shared_experts=1,
        first_k_dense_replace=3, kv_lora_rank=512, q_lora_rank=2048, qk_rope_head_dim=64,
        qk_nope_head_dim=192, v_head_dim=256, index_topk=2048, index_head_dim=128, index_n_heads=32,
    ),
    "glm4_moe_lite": _of(
        154880, 2048, 10240, 47, 20, 20, 202752,
        n_routed_experts=64, num_experts_per_tok=4, moe_intermediate_size=1536, n_shared_experts=1,
        first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=768, qk_rope_head_dim=64,
        qk_nope_head_dim=192, v_head_dim=256,
    ),
    "kimi_linear": _of(
        163840, 2304, 9216, 27, 32, 32, 1048576,
        num_experts=256, num_experts_per_token=8, moe_intermediate_size=1024, num_shared_experts=1,
        first_k_dense_replace=1, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128,
        v_head_dim=128, linear_num_heads=32, linear_head_dim=128, linear_conv_kernel_dim=4,
    ),
    "granitemoehybrid": _of(
        32000, 4096, 11008, 32, 32, None, 2048,
        num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=1024, **_MAMBA,
    ),
    "falcon_h1": _of(
        128000, 4096, 14336, 32, 32, 8, 8192, mamba_d_ssm=1024, mamba_rms_norm=False, **_MAMBA,
    ),
    "nemotron_h": _of(
        131072, 4096, 21504, None, 32, 8, 4096,
        head_dim=128, layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
        n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=7688,
        moe_shared_expert_intermediate_size=7688, mamba_num_heads=128, mamba_head_dim=64, n_groups=8,
        ssm_state_size=128, conv_kernel=4, use_conv_bias=True, mamba_ssm_cache_dtype="float32",
    ),
    "lfm2": _of(
        65536, 2560, 12288, 32, 32, 8, 128000,
        tie_word_embeddings=True, conv_L_cache=3, block_auto_adjust_ff_dim=True, block_multiple_of=256,
        block_ffn_dim_multiplier=1.0,
    ),
    "lfm2_moe": _of(
        65536, 2048, 7168, 32, 32, 8, 128000,
        tie_word_embeddings=True, conv_L_cache=3, num_experts=32, num_experts_per_tok=4,
        moe_intermediate_size=1792, num_dense_layers=2,
    ),
    "exaone_moe": _of(
        102400, 4096, 16384, 32, 32, 32, 2048,
        sliding_window=4096, num_experts=64, num_experts_per_tok=8, num_shared_experts=1,
        moe_intermediate_size=1024, first_k_dense_replace=1,
    ),
    "hy_v3": _of(
        120832, 4096, 13312, 80, 64, 8, 131072,
        head_dim=128, num_experts=192, num_experts_per_tok=8, num_shared_experts=1,
        moe_intermediate_size=1536, first_k_dense_replace=1,
    ),
}
# fmt: on
"""Qwen's classes name a window that is not used unless a config says so."""

DEFAULTS["qwen2_vl"] = DEFAULTS["qwen2_vl_text"]
DEFAULTS["qwen2_5_vl"] = DEFAULTS["qwen2_5_vl_text"]
DEFAULTS["kimi_k2"] = DEFAULTS["deepseek_v3"]
