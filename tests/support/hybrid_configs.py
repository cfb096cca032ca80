"""Fields of the ``config.json`` of well-known models with recurrent layers, or attention of several kinds.

They are meant to be those of the repositories on huggingface.co that the names are of. Not each was held
against its file: the tests rest on counts that come to the published ones.
"""

from __future__ import annotations

from typing import Any


def _every(period: int, layers: int) -> list[str]:
    """Each so many-th layer sees all tokens, the others have a window."""
    return ["sliding_attention" if (one + 1) % period else "full_attention" for one in range(layers)]


QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 5120,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_position_embeddings": 262144, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN35_35B_A3B: dict[str, Any] = {
    "model_type": "qwen3_5_moe", "vision_config": {"model_type": "qwen3_5_moe"}, "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048, "dtype": "bfloat16",
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 10,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144,
    },
}  # fmt: skip
NEMOTRON_3_NANO: dict[str, Any] = {
    "model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 2688, "intermediate_size": 1856,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131072,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "use_conv_bias": True, "mamba_ssm_cache_dtype": "float32", "n_routed_experts": 128,
    "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
_GRANITE_4 = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 40, "num_attention_heads": 32,
    "layer_types": ["attention" if one % 10 == 5 else "mamba" for one in range(40)], "mamba_d_conv": 4,
    "num_key_value_heads": 8, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
    "mamba_expand": 2, "vocab_size": 100352, "max_position_embeddings": 131072, "dtype": "bfloat16",
    "tie_word_embeddings": True,
}  # fmt: skip
GRANITE_4_H_SMALL: dict[str, Any] = {
    **_GRANITE_4, "hidden_size": 4096, "mamba_n_heads": 128, "intermediate_size": 768,
    "shared_intermediate_size": 1536, "num_local_experts": 72, "num_experts_per_tok": 10,
}  # fmt: skip
GRANITE_4_H_MICRO: dict[str, Any] = {
    **_GRANITE_4, "hidden_size": 2048, "mamba_n_heads": 64, "intermediate_size": 8192,
    "shared_intermediate_size": 8192, "num_local_experts": 0, "num_experts_per_tok": 0,
}  # fmt: skip
_KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "intermediate_size": 9216,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 163840, "kv_lora_rank": 512,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "model_max_length": 1048576, "dtype": "bfloat16",
    "linear_attn_config": {
        "full_attn_layers": _KIMI_FULL, "kda_layers": sorted({*range(1, 28)} - {*_KIMI_FULL}),
        "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
    },
    "tie_word_embeddings": False,
}  # fmt: skip
FALCON_H1_34B: dict[str, Any] = {
    "model_type": "falcon_h1", "num_hidden_layers": 72, "hidden_size": 5120, "intermediate_size": 21504,
    "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 261120,
    "mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 2,
    "mamba_d_conv": 4, "mamba_rms_norm": False, "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
LFM2_12B: dict[str, Any] = {
    "model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048, "block_ff_dim": 12288,
    "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
    "conv_dim": 2048, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "vocab_size": 65536,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000,
    "torch_dtype": "bfloat16", "tie_embedding": True,
}  # fmt: skip
GEMMA4_31B: dict[str, Any] = {
    "model_type": "gemma4", "vision_config": {"model_type": "gemma4_vision"}, "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma4_text", "num_hidden_layers": 60, "hidden_size": 5376,
        "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True,
        "sliding_window": 1024, "layer_types": _every(6, 60), "hidden_size_per_layer_input": 0,
        "vocab_size": 262144, "max_position_embeddings": 262144,
    },
}  # fmt: skip
GEMMA4_26B_A4B: dict[str, Any] = {
    "model_type": "gemma4", "vision_config": {"model_type": "gemma4_vision"}, "dtype": "bfloat16",
    "text_config": {
        **GEMMA4_31B["text_config"], "num_hidden_layers": 30, "hidden_size": 2816, "intermediate_size": 2112,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
        "layer_types": _every(6, 30), "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
}  # fmt: skip
GEMMA4_E2B: dict[str, Any] = {
    "model_type": "gemma4", "vision_config": {"model_type": "gemma4_vision"}, "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma4_text", "num_hidden_layers": 35, "hidden_size": 1536, "intermediate_size": 6144,
        "num_attention_heads": 8, "num_key_value_heads": 1, "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True, "layer_types": _every(5, 35), "hidden_size_per_layer_input": 256,
    },
}  # fmt: skip
DEEPSEEK_V32: dict[str, Any] = {
    "model_type": "deepseek_v32", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128, "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip

HYBRIDS = {
    "Qwen3-Next-80B-A3B": QWEN3_NEXT,
    "Qwen3.5-35B-A3B": QWEN35_35B_A3B,
    "Nemotron-3-Nano-30B-A3B": NEMOTRON_3_NANO,
    "Granite-4.0-H-Small": GRANITE_4_H_SMALL,
    "Granite-4.0-H-Micro": GRANITE_4_H_MICRO,
    "Kimi-Linear-48B-A3B": KIMI_LINEAR,
    "Falcon-H1-34B": FALCON_H1_34B,
    "LFM2-1.2B": LFM2_12B,
    "Gemma-4-31B": GEMMA4_31B,
    "Gemma-4-26B-A4B": GEMMA4_26B_A4B,
    "Gemma-4-E2B": GEMMA4_E2B,
    "DeepSeek-V3.2": DEEPSEEK_V32,
}
