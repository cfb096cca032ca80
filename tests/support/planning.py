"""Demands, models and catalogues for tests of plans, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from dray.planner.catalogue import Device, Link, load_catalogue
from dray.planner.cost import VLLM, Demand, EnginePolicy, ModelledReplica, Setting
from dray.planner.models import ModelFacts, model_facts
from tests.support.model_configs import CONFIGS

TENSORRT_LLM = EnginePolicy(name="tensorrt-llm", reserves_outputs=True, fill=1.0)
"""Another engine, of which figures are published."""
MODELS = {name: model_facts(config, name=name) for name, config in CONFIGS.items()}
LINK = Link(name="test", all_reduce={2: 1e10, 4: 8e9, 8: 6e9}, latency=8e-6)


def models() -> st.SearchStrategy[ModelFacts]:
    """Any of the known models, as its checkpoint is or with fp8 weights."""
    formats = st.sampled_from(["", "fp8"])
    return st.builds(
        lambda name, form: MODELS[name].in_format(form) if form else MODELS[name],
        st.sampled_from(sorted(MODELS)),
        formats,
    )


def demands() -> st.SearchStrategy[Demand]:
    """Valid demands, small and large."""
    return st.builds(
        Demand,
        rows=st.integers(1, 10**9),
        input_tokens=st.floats(1, 1e5),
        output_tokens=st.floats(1, 1e4),
        hit_share=st.floats(0, 1),
        output_error=st.floats(0, 0.5),
    )


def devices() -> st.SearchStrategy[Device]:
    """Any device of the catalogue."""
    return st.sampled_from(list(load_catalogue().devices().values()))


def replicas() -> st.SearchStrategy[ModelledReplica]:
    """A model on up to 64 devices, whether it fits or not."""
    sizes = st.sampled_from([1, 2, 4, 8])
    setting = st.builds(
        Setting,
        tensor_parallel=sizes,
        pipeline_parallel=sizes,
        kv=st.sampled_from(["bf16", "fp8"]),
        max_num_seqs=st.integers(1, 4096),
        max_num_batched_tokens=st.integers(64, 65536),
        engine=st.sampled_from([VLLM, TENSORRT_LLM]),
    )
    return st.builds(ModelledReplica, model=models(), device=devices(), link=st.just(LINK), setting=setting)
