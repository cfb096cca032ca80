"""Counts of well-known models against the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dray.planner.models import ModelFacts, Role, model_facts, read_model
from dray.weights.source.header import read_header
from tests.support.model_configs import CONFIGS, GEMMA3_27B, QWEN3_06B, QWEN3_30B_A3B

pytestmark = pytest.mark.unit

EXAMPLE = Path(__file__).parents[4] / "examples/tickets/model"

SAFETENSORS = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen2-7B": 7_615_616_512,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "LFM2-1.2B": 1_170_340_608,
    "Nemotron-3-Nano-30B-A3B": 31_577_940_288,
}
"""Numbers of parameters that huggingface.co shows for the safetensors files of these repositories."""

CARDS = {
    "Qwen3-0.6B": (0.6e9, 0.01),
    "DeepSeek-V3": (671e9, 0.001),
    "gpt-oss-20b": (20.91e9, 0.001),
    "gpt-oss-120b": (116.83e9, 0.0001),
    "gemma-3-27b": (1.416e9 + 25.600e9, 0.001),
    "Qwen3-Next-80B-A3B": (80e9, 0.01),
    "Qwen3.5-35B-A3B": (35e9, 0.02),
    "Granite-4.0-H-Small": (32e9, 0.01),
    "Granite-4.0-H-Micro": (3.2e9, 0.01),
    "Kimi-Linear-48B-A3B": (49.1e9, 0.001),
    "Falcon-H1-34B": (33.6e9, 0.002),
    "Gemma-4-31B": (30.7e9, 0.001),
    "Gemma-4-26B-A4B": (25.2e9, 0.002),
    "DeepSeek-V3.2": (671.9e9, 0.001),
}
"""Rounded in model cards and technical reports: Qwen3 (arXiv 2505.09388), DeepSeek-V3 (2412.19437), gpt-oss
(2508.10925), Gemma 3 (2503.19786, embedding and other parameters without the vision encoder). Kimi Linear
and DeepSeek-V3.2 by huggingface.co's count, without layers that predict several tokens."""

ACTIVE = {
    "Mixtral-8x7B-v0.1": (12.9e9, 0.02),
    "Qwen3-30B-A3B": (3.3e9, 0.1),
    "Qwen3-235B-A22B": (22e9, 0.03),
    "DeepSeek-V3": (37e9, 0.02),
    "gpt-oss-20b": (3.61e9, 0.001),
    "gpt-oss-120b": (5.13e9, 0.001),
    "Qwen3-Next-80B-A3B": (3.6e9, 0.02),
    "Nemotron-3-Nano-30B-A3B": (3.2e9, 0.02),
    "Granite-4.0-H-Small": (9e9, 0.03),
    "Kimi-Linear-48B-A3B": (3.1e9, 0.02),
    "Gemma-4-26B-A4B": (3.8e9, 0.01),
    "Gemma-4-E2B": (2.3e9, 0.01),
}
"""Of the same reports. OpenAI and NVIDIA leave the input embedding out, as we do; the others count it."""


def facts(name: str) -> ModelFacts:
    return model_facts(CONFIGS[name], name=name)


@pytest.mark.parametrize("name", SAFETENSORS)
def test_counts_equal_those_of_the_files(name: str) -> None:
    assert facts(name).parameters == SAFETENSORS[name]


@pytest.mark.parametrize("name", CARDS)
def test_counts_are_those_of_the_reports(name: str) -> None:
    published, tolerance = CARDS[name]
    assert facts(name).parameters == pytest.approx(published, rel=tolerance)


def active_parameters(model: ModelFacts) -> float:
    """Those that one sampled token is multiplied with: body, output layer, its share of the experts."""
    shares = {Role.BODY: 1.0, Role.HEAD: 1.0, Role.EXPERTS: model.routed_share}
    return sum(part.parameters * shares.get(part.role, 0.0) for part in model.parts)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_counts_are_those_of_the_reports(name: str) -> None:
    published, tolerance = ACTIVE[name]
    assert active_parameters(facts(name)) == pytest.approx(published, rel=tolerance)


def test_the_example_model_counts_as_its_file_does() -> None:
    header = read_header(EXAMPLE / "model.safetensors")
    elements = sum((tensor.end - tensor.start) // 4 for tensor in header.tensors)
    model = read_model(EXAMPLE)
    assert model.parameters == elements
    assert (model.format, model.weight_bytes) == ("fp32", 4 * elements)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama-3.1-8B", 131_072),
        ("Llama-3.1-70B", 327_680),
        ("DeepSeek-V3", 70_272),
        ("Qwen3-Next-80B-A3B", 24_576),
        ("Nemotron-3-Nano-30B-A3B", 6_144),
        ("Kimi-Linear-48B-A3B", 8_064),
    ],
)
def test_bytes_of_the_cache_per_token(name: str, expected: int) -> None:
    """Of the notes on the cost model; DeepSeek-V3: 61 layers of a latent of 512 + 64 elements."""
    assert 2 * sum(one.layers * one.cached for one in facts(name).attention) == expected


@pytest.mark.parametrize(
    ("name", "full", "windowed"),
    [
        ("Llama-3.1-8B", 32, 0),
        ("Qwen2-7B", 28, 0),
        ("Mistral-7B-v0.1", 0, 32),
        ("gemma-2-9b", 21, 21),
        ("gemma-3-1b", 4, 22),
        ("gemma-3-27b", 10, 52),
        ("gpt-oss-20b", 12, 12),
        ("Gemma-4-31B", 10, 50),
        ("Nemotron-3-Nano-30B-A3B", 6, 0),
        ("Falcon-H1-34B", 72, 0),
    ],
)
def test_layers_with_a_window(name: str, full: int, windowed: int) -> None:
    layers = {one.window is not None: one.layers for one in facts(name).attention}
    assert (layers.get(False, 0), layers.get(True, 0)) == (full, windowed)


@pytest.mark.parametrize("config", [QWEN3_06B, QWEN3_30B_A3B])
def test_a_window_of_qwen_is_used_only_where_the_config_says_so(config: dict[str, Any]) -> None:
    """As transformers reads it: use_sliding_window is false where it is left out."""
    silent = {name: value for name, value in config.items() if name != "use_sliding_window"}
    silent["sliding_window"] = 4096
    assert [one.window for one in model_facts(silent).attention] == [None]
    used = silent | {"use_sliding_window": True, "max_window_layers": 4}
    assert [one.window for one in model_facts(used).attention] == [None, 4096]


PHI_4: dict[str, Any] = {
    "model_type": "phi3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352, "sliding_window": None,
    "max_position_embeddings": 16384, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN25_VL_7B: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "sliding_window": 32768,
    "use_sliding_window": False, "max_window_layers": 28, "max_position_embeddings": 128000,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vision_config": {"depth": 32},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters", "cached"),
    [(PHI_4, 14_659_507_200, 204_800), (QWEN25_VL_7B, 7_615_616_512, 57_344)],
    ids=["Phi-4", "Qwen2.5-VL-7B"],
)
def test_families_that_count_as_another_one(config: dict[str, Any], parameters: int, cached: int) -> None:
    """Phi-4 fuses what Llama has apart. The language part of Qwen2.5-VL-7B is Qwen2.5-7B."""
    model = model_facts(config)
    assert model.parameters == parameters
    assert 2 * sum(one.layers * one.cached for one in model.attention) == cached
    assert [one.window for one in model.attention] == [None]
    if config is QWEN25_VL_7B:
        assert "vision" in " ".join(model.notes)
        text = {k: v for k, v in config.items() if k != "vision_config"} | {"model_type": "qwen2_5_vl_text"}
        inner = model_facts({"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": text})
        assert inner.parameters == parameters


@pytest.mark.parametrize(
    ("changed", "lengths"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, (16_384, 16_384)),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, (8192, 8192)),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, (4096, 4096)),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, (4096, 4096)),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, (4096, 4096)),
        ({"rope_scaling": {"type": "linear", "factor": None}}, (4096, 4096)),
    ],
)
def test_a_model_takes_as_long_requests_as_vllm_says(
    changed: dict[str, Any], lengths: tuple[int, int]
) -> None:
    """As vLLM 0.32's ModelConfig gives them for these configs, of a Llama with 4,096 positions."""
    model = model_facts({**CONFIGS["Llama-3.1-8B"], "max_position_embeddings": 4096, **changed})
    assert (model.max_length, model.most_length) == lengths


@pytest.mark.parametrize("name", ["longrope", "su"])
def test_a_long_phi_takes_its_first_positions_unless_told(name: str) -> None:
    """Phi-3-mini-128k: vLLM starts it with 4,096 tokens, and takes a max_model_len of 131,072."""
    scaling = {"type": name, "short_factor": [1.0] * 48, "long_factor": [1.1] * 48}
    model = model_facts(PHI_4 | {"max_position_embeddings": 131_072, "rope_scaling": scaling})
    assert (model.max_length, model.most_length) == (4096, 131_072)


@pytest.mark.parametrize(
    ("file", "said", "length"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False}, 512),
        ("sentence_xlm-roberta_config.json", {"max_seq_length": 9000}, 9000),
        ("sentence_bert_config.json", {"do_lower_case": False}, 4096),
        ("sentence_other_config.json", {"max_seq_length": 512}, 4096),
    ],
)
def test_a_model_for_sentences_takes_the_length_of_its_own_file(
    file: str, said: dict[str, Any], length: int, tmp_path: Path
) -> None:
    """As vLLM 0.32's ModelConfig gives it."""
    config = {**CONFIGS["Llama-3.1-8B"], "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / file).write_text(json.dumps(said))
    model = read_model(tmp_path)
    assert (model.max_length, model.most_length) == (length, length)


def test_a_vision_tower_is_said_not_to_be_counted() -> None:
    assert "vision" in " ".join(model_facts(GEMMA3_27B).notes)


def test_a_folder_is_read_with_the_separate_quantization_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Llama-3.1-8B"]))
    plain = read_model(tmp_path)
    quantized = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantized))
    model = read_model(tmp_path)
    assert (plain.format, model.format) == ("bf16", "nvfp4")
    assert model.parameters == plain.parameters
