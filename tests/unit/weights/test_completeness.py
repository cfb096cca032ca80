"""Experts that a kernel wants padded: vLLM's own parameters and loading, in small, on a CPU.

The backends that pad (FlashInfer's TRT-LLM on Blackwell, AITER) need their devices. Here the sizes alone are
as they would make them: this stands in for a load there, and is none.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.errors import WeightsError
from dray.weights.loading.completeness import Completeness, borrowed_by

torch: Any
routed: Any
method: Any

pytestmark = pytest.mark.unit

EXPERTS, HIDDEN, INTERMEDIATE = 3, 16, 24


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    """Imported by the process of pytest that runs these tests, and not by each that collects them."""
    global torch, routed, method
    torch = pytest.importorskip("torch")
    layers = "vllm.model_executor.layers.fused_moe"
    routed = pytest.importorskip(f"{layers}.routed_experts")
    method = pytest.importorskip(f"{layers}.unquantized_fused_moe_method")


def _model(*, hidden: int, intermediate: int, gated: bool) -> Any:
    """One layer of experts, allocated for these sizes; its memory looks as if it were used before."""
    config = SimpleNamespace(
        is_act_and_mul=gated,
        has_bias=False,
        hidden_dim=hidden,
        hidden_dim_unpadded=HIDDEN,
        intermediate_size=INTERMEDIATE,
        intermediate_size_per_partition=intermediate,
        intermediate_size_per_partition_unpadded=INTERMEDIATE,
        tp_shard_with_padding=False,
        moe_parallel_config=SimpleNamespace(tp_size=1),
    )
    experts = routed.RoutedExperts.__new__(routed.RoutedExperts)
    torch.nn.Module.__init__(experts)
    experts.moe_config = config
    experts.quant_method = method.UnquantizedFusedMoEMethod.__new__(method.UnquantizedFusedMoEMethod)
    torch.nn.Module.__init__(experts.quant_method)
    experts.quant_method.moe = config
    experts.quant_method.create_weights(experts, EXPERTS, hidden, intermediate, torch.bfloat16)
    model = torch.nn.Module()
    model.experts = experts
    return model


def _load(model: Any, *, without: tuple[int, str] | None = None) -> None:
    """As vLLM does it, all projections of all experts but one."""
    shards = {"w1": (INTERMEDIATE, HIDDEN), "w2": (HIDDEN, INTERMEDIATE)}
    if model.experts.moe_config.is_act_and_mul:
        shards["w3"] = shards["w1"]
    for expert in range(EXPERTS):
        for shard, shape in shards.items():
            if (expert, shard) != without:
                name = "w2_weight" if shard == "w2" else "w13_weight"
                model.experts._load_model_weight_or_group_weight_scale(
                    shard_dim=1 if shard == "w2" else 0,
                    expert_data=getattr(model.experts, name).data[expert],
                    shard_id=shard,
                    loaded_weight=torch.ones(shape, dtype=torch.bfloat16),
                    tp_rank=0,
                )


SIZES = [(HIDDEN, INTERMEDIATE), (HIDDEN, 32), (20, INTERMEDIATE), (20, 128)]


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("hidden", "intermediate"), SIZES)
def test_padding_need_not_be_loaded(hidden: int, intermediate: int, gated: bool) -> None:
    model = _model(hidden=hidden, intermediate=intermediate, gated=gated)
    completeness = Completeness(model)
    _load(model)
    completeness.refuse_missing(None, "m")


@pytest.mark.parametrize("shard", ["w1", "w2", "w3"])
@pytest.mark.parametrize("expert", [0, EXPERTS - 1])
@pytest.mark.parametrize(("hidden", "intermediate"), SIZES)
def test_a_projection_that_is_missing_is_named_beside_padding_too(
    hidden: int, intermediate: int, expert: int, shard: str
) -> None:
    model = _model(hidden=hidden, intermediate=intermediate, gated=True)
    completeness = Completeness(model)
    _load(model, without=(expert, shard))
    name = "w2_weight" if shard == "w2" else "w13_weight"
    with pytest.raises(WeightsError, match=f"lacks weights, or parts of them, for experts.{name};"):
        completeness.refuse_missing(None, "m")


@pytest.mark.parametrize("missing", [0, 5, 15])
def test_a_part_of_a_fused_parameter_that_is_missing_is_named(missing: int) -> None:
    """Of a layer that nobody pads: every row counts."""
    model = torch.nn.Module()
    model.qkv = torch.nn.Linear(32, 16, bias=False, dtype=torch.bfloat16)
    model.qkv.quant_method = type("UnquantizedLinearMethod", (), {})()
    completeness = Completeness(model)
    rows = [row for row in range(16) if row != missing]
    model.qkv.weight.data[rows] = 1.0
    with pytest.raises(WeightsError, match=r"for qkv\.weight;"):
        completeness.refuse_missing(None, "m")
    model.qkv.weight.data[missing] = 1.0
    completeness.refuse_missing(None, "m")


# -- quantised layers, with parameters that a sound checkpoint may lack ----

NVFP4 = ("weight", "weight_scale", "weight_scale_2", "w13_weight_packed", "w2_weight_global_scale")
ACTIVATIONS = ("input_scale", "w13_input_scale", "w2_input_scale", "w13_input_global_scale", "input_scale_2")


def _quantised(*names: str, symmetric: bool | None = None) -> Any:
    """A layer with these parameters, as vLLM's quantisation methods register them."""
    own: dict[str, Any] = {} if symmetric is None else {"is_symmetric": symmetric}
    own["process_weights_after_loading"] = lambda _self, _layer: None
    model, layer = torch.nn.Module(), torch.nn.Module()
    for name in names:
        layer.register_parameter(name, torch.nn.Parameter(torch.full((4,), torch.nan), requires_grad=False))
    layer.quant_method = type("SomeLinearMethod", (), own)()
    model.experts = layer
    return model


def test_a_weight_only_checkpoint_has_no_scales_of_activations() -> None:
    model = _quantised(*NVFP4, *ACTIVATIONS)
    Completeness(model).refuse_missing({f"experts.{name}" for name in NVFP4}, "m")


@pytest.mark.parametrize("lacking", NVFP4)
def test_a_quantised_weight_or_its_scale_that_is_missing_is_named(lacking: str) -> None:
    model = _quantised(*NVFP4, *ACTIVATIONS)
    loaded = {f"experts.{name}" for name in NVFP4 if name != lacking}
    with pytest.raises(WeightsError, match=rf"for experts\.{lacking};"):
        Completeness(model).refuse_missing(loaded, "m")


@pytest.mark.parametrize("name", ["w13_weight_zero_point", "w2_weight_zero_point", "qzeros"])
def test_zero_points_are_missed_unless_the_method_is_symmetric(name: str) -> None:
    Completeness(_quantised("w13_weight", name, symmetric=True)).refuse_missing({"experts.w13_weight"}, "m")
    for asymmetric in (False, None):
        model = _quantised("w13_weight", name, symmetric=asymmetric)
        with pytest.raises(WeightsError, match=rf"for experts\.{name};"):
            Completeness(model).refuse_missing({"experts.w13_weight"}, "m")


def test_a_parameter_of_no_quantised_layer_is_missed_whatever_its_name() -> None:
    model = torch.nn.Module()
    model.input_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    with pytest.raises(WeightsError, match=r"for input_scale;"):
        Completeness(model).refuse_missing(set(), "m")


def test_what_torchao_stored_in_pieces_is_refused_by_name(tmp_path: Path) -> None:
    from dray.weights.loading.vllm_loader import load

    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "torchao"}}')
    with pytest.raises(WeightsError, match=r"torchao stored its weights in pieces.*load_format=safetensors"):
        load(torch.nn.Module(), SimpleNamespace(model=str(tmp_path)))


# -- drafts, which get modules of their target ----


def _draft(*, own: tuple[str, ...] = (), unfilled: tuple[str, ...] = ()) -> tuple[Any, Completeness]:
    """A stand-in for EAGLE's model, marked and then loaded but for some of its modules."""
    model = torch.nn.Module()
    model.has_own_embed_tokens = "embed_tokens" in own
    model.has_own_lm_head = "lm_head" in own
    model.model, model.shared_head = torch.nn.Module(), torch.nn.Module()
    for parent, name in DRAFT_MODULES:
        layer = torch.nn.Linear(32, 16, bias=False, dtype=torch.bfloat16)
        layer.quant_method = type("UnquantizedLinearMethod", (), {})()
        setattr(getattr(model, parent) if parent else model, name, layer)
    completeness = Completeness(model)
    for parent, name in DRAFT_MODULES:
        if name not in unfilled:
            getattr(getattr(model, parent) if parent else model, name).weight.data.fill_(1.0)
    return model, completeness


DRAFT_MODULES = [("model", "embed_tokens"), ("model", "fc"), ("", "lm_head"), ("shared_head", "head")]
AS_DRAFT = SimpleNamespace(runner_type="draft")


def _method(*, eagle: bool) -> Any:
    return SimpleNamespace(use_eagle=lambda: eagle)


def test_a_draft_may_lack_what_vllm_takes_from_its_target() -> None:
    model, completeness = _draft(unfilled=("embed_tokens", "lm_head", "head"))
    borrowed = borrowed_by(model, AS_DRAFT, _method(eagle=True))
    assert borrowed == {"embed_tokens", "lm_head", "shared_head.head"}
    completeness.refuse_missing(None, "m", borrowed=borrowed)


@pytest.mark.parametrize(
    ("own", "unfilled", "named"),
    [
        ((), "fc", r"model\.fc\.weight"),
        (("embed_tokens",), "embed_tokens", r"model\.embed_tokens\.weight"),
        (("lm_head",), "lm_head", r"lm_head\.weight"),
    ],
)
def test_a_draft_has_all_that_is_its_own(own: tuple[str, ...], unfilled: str, named: str) -> None:
    model, completeness = _draft(own=own, unfilled=(unfilled,))
    borrowed = borrowed_by(model, AS_DRAFT, _method(eagle=True))
    with pytest.raises(WeightsError, match=f"for {named};"):
        completeness.refuse_missing(None, "m", borrowed=borrowed)


@pytest.mark.parametrize(
    ("model_config", "speculative"),
    [
        (SimpleNamespace(runner_type="generate"), _method(eagle=True)),  # the target beside such a draft
        (AS_DRAFT, _method(eagle=False)),  # a model of its own, as small as a draft should be
        (SimpleNamespace(runner_type="generate"), None),
        (SimpleNamespace(), None),
    ],
)
def test_others_borrow_nothing_though_llamas_class_says_that_it_owns_nothing(
    model_config: Any, speculative: Any
) -> None:
    model, completeness = _draft(unfilled=("lm_head",))
    borrowed = borrowed_by(model, model_config, speculative)
    assert borrowed == frozenset()
    with pytest.raises(WeightsError, match=r"for lm_head\.weight;"):
        completeness.refuse_missing(None, "m", borrowed=borrowed)
