"""States of recurrent layers, and blocks of the cache beside them, against vLLM's own calculators."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from dray.planner.cost import Setting
from dray.planner.cost.memory import block_tokens
from dray.planner.models import model_facts
from tests.support.hybrid_configs import HYBRIDS

pytestmark = [pytest.mark.unit, pytest.mark.heavy]

CLASSES = {
    "Qwen3-Next-80B-A3B": "qwen3_next.Qwen3NextForCausalLM",
    "Qwen3.5-35B-A3B": "qwen3_next.Qwen3NextForCausalLM",
    "Nemotron-3-Nano-30B-A3B": "nemotron_h.NemotronHForCausalLM",
    "Granite-4.0-H-Small": "granitemoehybrid.GraniteMoeHybridForCausalLM",
    "Falcon-H1-34B": "falcon_h1.FalconH1ForCausalLM",
    "LFM2-1.2B": "lfm2.Lfm2ForCausalLM",
    "Kimi-Linear-48B-A3B": "",
}
"""In ``vllm.model_executor.models``. Kimi's cannot be imported without a GPU. Qwen3.5's, which counts as
Qwen3-Next's does, cannot be without torchvision."""
UPDATES = {"Qwen3.5-35B-A3B": "Qwen3_5ForCausalLM", "Nemotron-3-Nano-30B-A3B": "NemotronHForCausalLM"}
"""What vLLM changes in the dtypes as it starts, by the class that it does so for."""


def vllm_config(name: str, cache: str = "auto", ranks: int = 1) -> Any:
    """As much of vLLM's configuration as the calculators read."""
    torch = pytest.importorskip("torch")
    config = HYBRIDS[name].get("text_config", HYBRIDS[name])
    found = SimpleNamespace(
        cache_config=SimpleNamespace(
            mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto", use_replayssm=False, cache_dtype=cache,
            block_size=16, mamba_cache_mode="align", mamba_page_size_padded=None, mamba_block_size=None,
        ),
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(**config),
            hf_text_config=SimpleNamespace(**config, rope_parameters=None),
            dtype=torch.bfloat16,
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        speculative_config=None,
        num_speculative_tokens=0,
    )  # fmt: skip
    if name in UPDATES:
        updates = import_module("vllm.model_executor.models.config").MODELS_CONFIG_MAP
        updates[UPDATES[name]].verify_and_update_config(found)
    return found


def states_of(name: str, given: Any) -> tuple[Any, Any]:
    """Shapes and dtypes of one layer's states."""
    if not CLASSES[name]:
        mamba = import_module("vllm.model_executor.layers.mamba.mamba_utils")
        linear = given.model_config.hf_config.linear_attn_config
        shapes = mamba.MambaStateShapeCalculator.kda_state_shape(
            given.parallel_config.tensor_parallel_size,
            linear["num_heads"],
            linear["head_dim"],
            conv_kernel_size=linear["short_conv_kernel_size"],
        )
        return shapes, mamba.MambaStateDtypeCalculator.kda_state_dtype(given.model_config.dtype, "auto")
    module, _, made = CLASSES[name].partition(".")
    kind = getattr(import_module(f"vllm.model_executor.models.{module}"), made)
    return kind.get_mamba_state_shape_from_config(given), kind.get_mamba_state_dtype_from_config(given)


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_is_as_large_as_vllm_makes_it(name: str) -> None:
    pytest.importorskip("vllm")
    shapes, dtypes = states_of(name, vllm_config(name))
    model = model_facts(HYBRIDS[name])
    (recurrent,) = model.recurrent
    elements = [prod(shape) for shape in shapes]
    assert elements == [size for size in (recurrent.convolution, recurrent.state) if size]
    expected = sum(size * dtype.itemsize for size, dtype in zip(elements, dtypes, strict=True))
    assert recurrent.layer_bytes(model.dtype) == expected


@pytest.mark.parametrize(("cache", "ranks"), [("auto", 1), ("fp8", 1), ("auto", 2)])
@pytest.mark.parametrize("name", CLASSES)
def test_a_block_has_as_many_tokens_as_vllm_gives_it(
    name: str, cache: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    platform = import_module("vllm.platforms.interface").Platform
    given, model = vllm_config(name, cache, ranks), model_facts(HYBRIDS[name])
    shapes, dtypes = states_of(name, given)
    made = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: shapes, get_mamba_state_dtype_from_config=lambda _: dtypes
    )
    registry = import_module("vllm.model_executor.models").ModelRegistry
    monkeypatch.setattr(type(registry), "resolve_model_cls", lambda *_, **__: (made, ""))
    multiple = import_module("vllm.v1.attention.backend").MultipleOf
    backend = SimpleNamespace(
        get_supported_kernel_block_sizes=lambda: [multiple(16)], customize_spec=lambda spec: spec
    )
    monkeypatch.setattr(platform, "_find_non_ssm_backends", lambda *_: [backend])
    one = model.attention[0]
    heads, size = (1, one.cached) if one.latent else (one.kv_heads, one.cached // (2 * one.kv_heads))
    given.model_config.use_mla, given.model_config.architecture = one.latent, ""
    given.model_config.get_num_kv_heads = lambda _: max(1, heads // ranks)
    given.model_config.get_head_size = lambda: size
    configs = import_module("vllm.config.vllm")
    monkeypatch.setattr(configs, "set_current_vllm_config", lambda _: nullcontext())
    platform._align_hybrid_block_size(given, backend)
    kv = "fp8" if cache == "fp8" else "bf16"
    assert block_tokens(model, Setting(kv=kv, tensor_parallel=ranks)) == given.cache_config.block_size
