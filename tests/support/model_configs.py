"""Fields of the ``config.json`` of well-known models that decide their sizes, and their published counts.

The fields are those of the repositories on huggingface.co that the names are of, read in 2026.
"""

from __future__ import annotations

from typing import Any

from tests.support.hybrid_configs import HYBRIDS

_LLAMA = {
    "model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_8B: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
}  # fmt: skip
LLAMA_1B: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_70B: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
    "num_attention_heads": 64,
}  # fmt: skip
LLAMA_405B: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248,
    "num_attention_heads": 128,
}  # fmt: skip
MISTRAL_7B: dict[str, Any] = {
    "model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL_8X7B: dict[str, Any] = {
    **MISTRAL_7B, "model_type": "mixtral", "sliding_window": None, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
QWEN2_7B: dict[str, Any] = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "sliding_window": 131072,
    "use_sliding_window": False, "max_window_layers": 28, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3 = {
    "model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
    "attention_bias": False, "sliding_window": None, "use_sliding_window": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_06B: dict[str, Any] = {
    **_QWEN3, "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_8B: dict[str, Any] = {
    **_QWEN3, "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3_MOE = {
    **_QWEN3, "model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": 128,
    "num_experts_per_tok": 8, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    **_QWEN3_MOE, "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_attention_heads": 32,
}  # fmt: skip
QWEN3_235B_A22B: dict[str, Any] = {
    **_QWEN3_MOE, "num_hidden_layers": 94, "hidden_size": 4096, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "num_attention_heads": 64,
}  # fmt: skip
GEMMA2_9B: dict[str, Any] = {
    "model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "intermediate_size": 14336,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000,
    "sliding_window": 4096, "max_position_embeddings": 8192, "torch_dtype": "float32",
}  # fmt: skip
GEMMA3_1B: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152, "intermediate_size": 6912,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
    "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA3_27B: dict[str, Any] = {
    "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
    },
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 3, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
_GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_experts_per_tok": 4,
    "experts_per_token": 4, "attention_bias": True, "sliding_window": 128, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
    },
}  # fmt: skip
GPT_OSS_20B: dict[str, Any] = {
    **_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
GPT_OSS_120B: dict[str, Any] = {
    **_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip

CONFIGS = {
    "Llama-3.1-8B": LLAMA_8B,
    "Llama-3.1-70B": LLAMA_70B,
    "Llama-3.1-405B": LLAMA_405B,
    "Mistral-7B-v0.1": MISTRAL_7B,
    "Mixtral-8x7B-v0.1": MIXTRAL_8X7B,
    "Qwen2-7B": QWEN2_7B,
    "Qwen3-0.6B": QWEN3_06B,
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-30B-A3B": QWEN3_30B_A3B,
    "Qwen3-235B-A22B": QWEN3_235B_A22B,
    "gemma-2-9b": GEMMA2_9B,
    "gemma-3-1b": GEMMA3_1B,
    "gemma-3-27b": GEMMA3_27B,
    "DeepSeek-V3": DEEPSEEK_V3,
    "gpt-oss-20b": GPT_OSS_20B,
    "gpt-oss-120b": GPT_OSS_120B,
    **HYBRIDS,
}
