"""What can be said of the vLLM part without an engine: errors, arguments, quotations."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.prompt_day import VARIABLE
from dray.engine.protocol import EngineSpec
from dray.engine.redaction import without_quotes
from dray.engine.vllm_adapter.arguments import (
    ENVIRONMENT,
    _cache_bytes,
    _cpu_defaults,
    eager_on_cpu,
    engine_arguments,
    prepare_environment,
)
from dray.engine.vllm_adapter.core import choice
from dray.engine.vllm_adapter.core.apart import CoreLine
from dray.engine.vllm_adapter.core.process import LastWords
from dray.engine.vllm_adapter.engine import VllmEngine
from dray.engine.vllm_adapter.imports import import_vllm
from dray.errors import ConfigError, EngineDeadError
from dray.failures.signs import out_of_memory
from dray.kinds import Kind
from dray.weights.loading.ranks import Ranks
from tests.support.model_configs import LLAMA_1B, LLAMA_8B, MISTRAL_7B, QWEN3_06B

pytestmark = pytest.mark.unit


def spec(model: str = "m", **arguments: Any) -> EngineSpec:
    return EngineSpec(name="vllm", model=model, kind=Kind.CHAT, arguments=arguments)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test sets in the environment goes when it ends."""
    for name in (*ENVIRONMENT, "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


def test_without_vllm_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, environment: None
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match="its extra gpu or cpu"):
        VllmEngine(spec())


def test_an_installation_that_does_not_work_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file\nmore", name="vllm._C")

    monkeypatch.setattr("dray.engine.vllm_adapter.imports.import_module", broken)
    with pytest.raises(ConfigError, match=r"is installed.*\(libcudart.so.13: cannot open shared object"):
        import_vllm((), eager_on_cpu=False)


def test_traces_are_refused_before_an_engine_starts() -> None:
    """vLLM writes them from statistics that dray leaves out, and ended at the first row that finished."""
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint.*leave it out"):
        engine_arguments(spec(otlp_traces_endpoint="grpc://traces:4317"), {}, cpu=True)


def test_a_failing_step_means_a_dead_engine() -> None:
    def broken() -> None:
        raise RuntimeError("kernel")

    engine = object.__new__(VllmEngine)
    engine._flights = SimpleNamespace(go_on=lambda: None, in_engine=True)  # type: ignore[assignment]
    engine._line = None
    engine._ranks = Ranks()
    engine._engine = SimpleNamespace(step=broken)
    engine._client = SimpleNamespace(progress=0)  # type: ignore[assignment]
    with pytest.raises(EngineDeadError, match="RuntimeError"):
        engine.step()


@pytest.mark.parametrize("lives", [True, False])
def test_a_fault_of_the_front_is_no_death_of_the_core(*, lives: bool) -> None:
    """Each error of a step was told as the core's end, two seconds later, and its own class was lost."""
    words = LastWords("SIGKILL", "", oom=False)
    core = SimpleNamespace(is_alive=lambda: lives, last_words=lambda: words)
    line = object.__new__(CoreLine)
    line._core = core  # type: ignore[assignment]
    engine = object.__new__(VllmEngine)
    engine._line = line
    engine._ranks = Ranks()
    told = str(engine._death(UnicodeDecodeError("utf-8", b"", 0, 1, "a row's words")))
    assert told == ("UnicodeDecodeError in the engine's step" if lives else "SIGKILL in the engine's core")
    assert str(engine._death(EngineDeadError("the core"))) == "SIGKILL in the engine's core"


def test_a_rank_says_in_words_alone_that_it_lacks_memory() -> None:
    said = "Worker failed with error 'CUDA out of memory. Tried to allocate 2.00 GiB', please check the stack"
    for text, lacks in (said, True), ("Worker failed with error 'shape'", False), ("out of memory", False):
        error = EngineDeadError("RuntimeError in the engine's step")
        error.__cause__ = RuntimeError(text)
        assert out_of_memory(error) is lacks


def test_the_environment_of_the_user_stays(
    tmp_path: Path, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    prepare_environment(spec(str(tmp_path)))
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
    assert os.environ["HF_HUB_OFFLINE"] == "1", "a local folder needs no hub"


def test_the_day_of_the_job_stands_before_that_of_a_node(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gpt-oss has it in its prompts, and nodes are given the variables of the driver that resumes the job."""
    monkeypatch.setenv(VARIABLE, "2002-02-02")
    prepare_environment(spec())
    assert os.environ[VARIABLE] == "2002-02-02"
    prepare_environment(replace(spec(), prompt_day="2001-02-03"))
    assert os.environ[VARIABLE] == "2001-02-03"


def test_a_replica_without_gpus_sees_none(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray hides none from it: its engine took the first GPU of the node, which is another replica's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    prepare_environment(spec())
    prepare_environment(replace(spec(), gpus=0.5))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    prepare_environment(replace(spec(), gpus=0.0))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("build", "visible", "apart"),
    [("gpu", None, True), ("gpu", "0", True), (None, None, True), ("gpu", "", False), ("cpu", None, False)],
)
def test_the_core_has_a_process_where_vllm_computes_on_a_device(
    build: str | None, visible: str | None, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's build for CPUs started a second process on machines with GPUs, and ended it."""
    monkeypatch.setattr(choice, "vllm_build", lambda: build)
    monkeypatch.setattr(choice, "_DEVICES", (str(tmp_path),))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choice.runs_apart({}) is apart


def test_eager_is_the_default_on_cpu() -> None:
    assert eager_on_cpu(spec())
    assert not eager_on_cpu(spec(enforce_eager=False))


def test_the_cache_on_cpu_fits_a_full_batch_within_bounds() -> None:
    config = {"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 4, "num_key_value_heads": 2}
    per_token = 2 * 4 * 2 * 64 * 4
    assert _cache_bytes(config, {"max_model_len": 2048, "max_num_seqs": 128}) == per_token * 2048 * 128
    assert _cache_bytes(config, {"max_model_len": 16, "max_num_seqs": 1}) == 1 << 28
    assert _cache_bytes(config, {"max_model_len": 1 << 20}) == 4 << 30
    assert _cache_bytes({"hidden_size": 512}, {}) == 4 << 30, "an unusual model gets the bound"


@pytest.mark.parametrize(
    ("config", "given", "least", "most"),
    [
        (QWEN3_06B, {}, 4.38, 4.6),  # 40,960 tokens of 112 KiB
        (LLAMA_1B, {}, 4.01, 4.2),  # 131,072 of 32 KiB, and the block that vLLM holds back
        (LLAMA_8B, {}, 16.0, 16.6),
        (LLAMA_8B, {"tensor_parallel_size": 2}, 8.0, 8.3),
        (QWEN3_06B, {"dtype": "float32"}, 8.75, 9.1),
        (QWEN3_06B, {"kv_cache_dtype": "fp8"}, 4, 4),
        (QWEN3_06B, {"max_model_len": 32_768}, 4, 4),
        (MISTRAL_7B, {}, 4, 4),  # of 32,768 tokens it keeps a window, and those of a step
        ({"model_type": "unheard_of"}, {}, 4, 4),
    ],
)
def test_the_cache_on_cpu_holds_one_request_of_full_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], given: dict[str, Any],
    least: float, most: float,
) -> None:  # fmt: skip
    """With 4 GiB for each model, vLLM did not start Qwen 3 nor Llama 3."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = _cpu_defaults(str(tmp_path), given)["kv_cache_memory_bytes"] / (1 << 30)
    assert least <= found <= most
    assert _cpu_defaults(str(tmp_path), {"kv_cache_memory_bytes": 1}).get("kv_cache_memory_bytes") is None


TEXT = st.text(st.characters(codec="utf-8"), min_size=40, max_size=200)


@given(prompt=TEXT, before=st.text(max_size=30), start=st.integers(0, 20), escaped=st.booleans())
def test_no_message_quotes_a_prompt(prompt: str, before: str, start: int, escaped: bool) -> None:
    quoted = repr(prompt[start:])[1:-1] if escaped else prompt[start:]
    cleaned = without_quotes(f"{before}: got {quoted}!", {"messages": [{"content": [{"text": prompt}]}]})
    shared = max((prompt[at : at + 24] for at in range(len(prompt) - 23)), key=lambda part: part in cleaned)
    assert shared not in cleaned


def test_deep_bodies_are_no_trouble_for_messages() -> None:
    deep: Any = "a long text at the bottom"
    for _ in range(5000):
        deep = [{"a": deep}]
    assert without_quotes("no: a long text at the bottom", {"x": deep}) == "no: ..."


def test_of_a_file_the_begin_alone_is_looked_at() -> None:
    """All of a video took seconds of the engine's thread, for each row that was too long for the context."""
    video, words = (
        f"data:video/mp4;base64,{'AAAA' * 1000}{'BCDE' * 10}",
        f"data: {'- ' * 1000}of the customer Miller",
    )
    body = {"messages": [{"content": [{"video_url": {"url": video}}, {"text": words}]}]}
    assert without_quotes(f"bad URL {video[:40]!r}, {'BCDE' * 10}", body) == f"bad URL '...', {'BCDE' * 10}"
    assert without_quotes("no: of the customer Miller", body) == "no:..."
