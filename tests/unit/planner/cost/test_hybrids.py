"""Models with recurrent layers, sparse attention and shared caches: memory, time, prefixes, notes."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from dray.planner.catalogue import load_catalogue
from dray.planner.cost import Demand, PlanLimits, Plans, Setting, plans, replica_on
from dray.planner.cost.choices import refusal
from dray.planner.cost.memory import block_tokens, in_blocks, longest_bytes, request_bytes
from dray.planner.cost.step import decode_attention_seconds, prefill_attention_seconds
from dray.planner.efficiencies import model_key
from dray.planner.models import ModelFacts, model_facts
from tests.support.hybrid_configs import DEEPSEEK_V32, GEMMA4_E2B, LFM2_12B, NEMOTRON_3_NANO, QWEN3_NEXT
from tests.support.model_configs import DEEPSEEK_V3, LLAMA_8B, QWEN3_30B_A3B

pytestmark = pytest.mark.unit

CATALOGUE = load_catalogue()
H200 = CATALOGUE.instances["p5en.48xlarge"]
NANO, NEXT = model_facts(NEMOTRON_3_NANO), model_facts(QWEN3_NEXT)
JOB = Demand(rows=100_000, input_tokens=300, output_tokens=100)


def planned(config: dict[str, Any], demand: Demand) -> Plans:
    limits = PlanLimits(hardware=("p5en.48xlarge",), spot=False)
    return plans(demand, model_facts(config), CATALOGUE, limits, today=date(2026, 11, 24))


def decode(model: ModelFacts, demand: Demand) -> float:
    return decode_attention_seconds(replica_on(H200, model, Setting()), demand)


def test_a_sequence_holds_a_state_in_each_recurrent_layer_and_whole_blocks() -> None:
    """23 layers with a state of 2,134,016 bytes, 6 of attention; blocks of 2,096 tokens of 1,024 bytes."""
    (state,) = NANO.recurrent
    assert (state.layers, state.layer_bytes("bf16")) == (23, 4 * 64 * 64 * 128 + 2 * 3 * 6144)
    assert block_tokens(NANO, Setting()) == 2096
    assert request_bytes(NANO, Setting(), JOB) == 2096 * 1024 * (23 + 6)
    long = replace(JOB, input_tokens=10_000)
    assert request_bytes(NANO, Setting(), long) == pytest.approx(1024 * (2096 * 23 + (10_050 + 1048) * 6))
    assert longest_bytes(NANO, Setting(), JOB) == 2096 * 1024 * (2 * 23 + 6)


def test_a_hybrid_without_experts_has_not_those_of_its_class() -> None:
    """Nemotron Nano 9B v2 in NVFP4: its class would have 8 experts of 7,688, which no two ranks can share."""
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 16}
    groups = {"group_0": {"weights": weights}}
    nano_9b = {
        "model_type": "nemotron_h", "hidden_size": 4480, "intermediate_size": 15680, "vocab_size": 131072,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128,
        "mamba_head_dim": 80, "max_position_embeddings": 131072,
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups},
    }  # fmt: skip
    facts = model_facts(nano_9b)
    assert (facts.experts, facts.expert_width, facts.widths, facts.block) == (0, 0, (15680,), 16)
    assert "e2" not in model_key(facts)
    splits = {plan.setting.tensor_parallel for plan in planned(nano_9b, JOB).plans}
    assert splits == {1, 2, 4}  # 15,680 is no multiple of 8 * 16


def test_blocks_are_as_few_tokens_where_a_state_is_small() -> None:
    assert block_tokens(model_facts(LFM2_12B), Setting()) == 16
    assert block_tokens(model_facts(LLAMA_8B), Setting()) == 1


def test_decoding_reads_and_writes_the_state_whatever_the_context_is() -> None:
    alone = replace(NANO, attention=())
    seconds = 2 * 23 * NANO.recurrent[0].layer_bytes("bf16") / H200.device.kv_rate("bf16")
    assert decode(alone, JOB) == pytest.approx(seconds)
    assert decode(alone, replace(JOB, input_tokens=30_000)) == pytest.approx(seconds)


def test_a_prompt_takes_a_recurrent_layer_as_long_per_token_whatever_its_length_is() -> None:
    alone = replace(NEXT, attention=())
    rate = H200.device.attention_rate
    short, long = replace(JOB, input_tokens=1000), replace(JOB, input_tokens=50_000)
    of = [prefill_attention_seconds(replica_on(H200, alone, Setting()), one) for one in (short, long)]
    assert of[1] * rate(50_000) == pytest.approx(50 * of[0] * rate(1000))


def test_prefixes_are_served_in_whole_blocks() -> None:
    """Qwen3-Next's have 544 tokens, as its 1,097,728 bytes of state take that many of 2,048 bytes."""
    assert block_tokens(NEXT, Setting()) == 544
    for shared, served in ((500, 0), (600, 544), (1100, 1088)):
        demand = replace(JOB, input_tokens=2000, hit_share=shared / 2000)
        assert in_blocks(NEXT, Setting(), demand).hit == pytest.approx(served)
        assert in_blocks(model_facts(LLAMA_8B), Setting(), demand) is demand


def test_a_plan_promises_no_prefix_that_the_engine_does_not_serve() -> None:
    shared = planned(QWEN3_NEXT, replace(JOB, input_tokens=1000, hit_share=0.5))
    without = planned(QWEN3_NEXT, replace(JOB, input_tokens=1000))
    assert shared.plans[0].dollars == without.plans[0].dollars
    said = "50% of the input is shared, 0% is counted as served: vLLM serves prefixes of this model in "
    assert f"{said}blocks of 544 tokens, from the third request on." in shared.plans[0].notes
    assert not [note for note in without.plans[0].notes if "prefixes" in note]


def test_no_run_with_such_layers_was_measured() -> None:
    found, known = planned(NEMOTRON_3_NANO, JOB).plans[0], planned(LLAMA_8B, JOB).plans[0]
    assert found.phi.low < known.phi.low < known.phi.high < found.phi.high
    assert "recurrent layers" in found.phi.reason
    assert "sparse attention" in planned(DEEPSEEK_V32, JOB).plans[0].phi.reason


def test_a_plan_says_that_no_run_with_experts_was_measured() -> None:
    """Published ones reached half of what the model says: less than the interval had."""
    found, known = planned(QWEN3_30B_A3B, JOB).plans[0], planned(LLAMA_8B, JOB).plans[0]
    assert found.phi.low < known.phi.low < known.phi.high < found.phi.high
    assert "experts, of which no run was measured" in found.phi.reason
    assert any("No run of a mixture of experts was measured" in note for note in found.notes)
    assert not any("experts" in note for note in known.notes)
    assert "recurrent layers and experts" in planned(QWEN3_NEXT, JOB).plans[0].phi.reason


def test_groups_of_a_state_are_not_split() -> None:
    refused = refusal(H200, NANO, Setting(tensor_parallel=16), JOB)
    assert refused is not None
    assert "8 heads of a recurrent layer's state cannot be split over 16 devices" in refused.reason


def test_an_indexer_keeps_a_key_per_token_and_attention_reads_2048_tokens() -> None:
    sparse, dense = model_facts(DEEPSEEK_V32), model_facts(DEEPSEEK_V3)
    token = [request_bytes(one, Setting(), JOB) / (300 + 50) for one in (sparse, dense)]
    assert token == pytest.approx([61 * (1152 + 132), 61 * 1152])
    short, long = replace(JOB, input_tokens=1000), replace(JOB, input_tokens=60_000)
    assert decode(sparse, short) > decode(dense, short)
    assert decode(sparse, long) < decode(dense, long) / 2
    (one,) = sparse.attention
    assert one.mean_seen(60_000, 60_100) == 2048
    assert one.mean_kept(60_000, 60_100) == 60_050


def test_layers_that_share_keys_and_values_keep_none_but_read_them() -> None:
    model = model_facts(GEMMA4_E2B)
    assert [(one.layers, one.window, one.stored) for one in model.attention] == [
        (3, None, True), (4, None, False), (12, 512, True), (16, 512, False),
    ]  # fmt: skip
    assert request_bytes(model, Setting(), JOB) == pytest.approx(350 * 2 * (3 * 1024 + 12 * 512))
    own = replace(model, attention=tuple(one for one in model.attention if one.stored))
    assert decode(model, JOB) > 2 * decode(own, JOB)
