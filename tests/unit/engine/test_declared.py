"""vLLM's engine arguments, as its source declares them: the installed vLLM, never imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from dray.engine import declared
from dray.engine.body_fields import refuse_unknown_fields
from dray.engine.declared import refuse_arguments
from dray.errors import ConfigError
from dray.kinds import LENGTH_FIELDS, Kind, all_kinds
from dray.requests.validate import filler

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs the source of vLLM"),
]


CLASSES = {
    "chat": ("chat_completion", "ChatCompletionRequest"),
    "completion": ("completion", "CompletionRequest"),
    "response": ("responses", "ResponsesRequest"),
}


@pytest.mark.parametrize("name", LENGTH_FIELDS)
@pytest.mark.parametrize("kind", [kind for kind in all_kinds() if kind.engine.generates], ids=str)
def test_a_length_for_all_rows_is_in_the_words_of_each_kind(kind: Kind, name: str) -> None:
    body: dict[str, Any] = {}
    filler({name: 5})(kind.url, body)
    known: frozenset[str] | None = kind.engine.fields
    if not known:
        module, of_vllm = CLASSES[kind.name]
        known = declared.fields_of_class(f"vllm.entrypoints.openai.{module}.protocol", of_vllm)
    assert list(body.values()) == [5]
    assert body.keys() <= (known or set())


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max_modle_len", 4096, r"^vLLM [\d.]+ has no .*; did you mean max_model_len\?"),
        ("tool_cal_parser", "hermes", r"; did you mean tool_call_parser\?"),
        ("xyzzy", 1, "no engine argument xyzzy; `vllm serve"),
        ("dtype", "flaot16", r"'flaot16' is none of auto, half, float16, .*; did you mean float16\?"),
        ("kv_cache_dtype", "fp9", r"'fp9' is none of auto, .*fp8_e4m3.*; did you mean fp8\?"),
        ("max_model_len", "4k", "'4k': input should be a valid integer"),
        ("max_model_len", -2, "'-2': input should be greater than or equal to -1"),
        ("gpu_memory_utilization", 1.5, "'1.5': input should be less than or equal to 1"),
        ("tensor_parallel_size", 0, "'0': input should be greater than or equal to 1"),
        ("enforce_eager", "flase", "'flase': input should be a valid boolean"),
        ("max_num_seqs", [4], r"'\[4\]': input should be a valid integer"),
        ("limit_mm_per_prompt", "image=1", "'image=1': input should be a valid dictionary"),
        ("max_lora_rank", 17, "'17' is none of 1, 8, 16, [0-9, ]+$"),
        ("image_threads", "two", "image_threads: 'two' is no whole number, 0 or more"),
        ("image_threads", -1, "-1 is no whole number"),
        ("mm_processor_cache_gb", -0.5, "-0.5 is no number of GiB, 0 or more"),
        ("mm_processor_cache_type", "shm", "front and core share no images here"),
    ],
)
def test_what_vllm_would_not_take(name: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        refuse_arguments({name: value})
    assert f"engine argument {name}" in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True, "gpu_memory_utilization": 0.8},
        {"max_model_len": None, "max_num_seqs": None},  # as left out
        {"max_model_len": -1},
        {"tool_call_parser": "hermes", "enable_auto_tool_choice": True},  # options of vLLM's server
        {"structured_outputs_config": {"backend": "xgrammar"}, "hf_overrides": {"rope_theta": 1e6}},
        {"quantization": "one-of-a-plugin"},  # any text by its type
        {"moe_backend": "Deep-GEMM"},  # vLLM reads it as deep_gemm
        {"served_model_name": ["a", "b"], "cudagraph_capture_sizes": [1, 2, 4]},
    ],
)
def test_what_it_takes(arguments: dict[str, Any]) -> None:
    refuse_arguments(arguments)


def test_every_argument_can_be_judged_and_most_have_a_type() -> None:
    """On the installed version: a class that looks different would be judged no more, without a word."""
    found = declared._declared()
    assert found is not None
    assert len(found) > 150
    kinds = {name: one.kind() for name, one in found.items()}
    assert sum(kind is Any for kind in kinds.values()) < len(kinds) / 4


def test_where_vllm_is_not_installed_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "find_spec", lambda _: None)
    declared._declared.cache_clear()
    try:
        refuse_arguments({"max_modle_len": 1})
    finally:
        declared._declared.cache_clear()


def test_a_module_is_parsed_again_where_another_thread_was_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse, failed = ast.parse, SystemError("AST constructor recursion depth mismatch (before=192, after=76)")
    outcomes: list[Exception | None] = [failed, failed, None]

    def disturbed(text: bytes) -> ast.Module:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return parse(text)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert ast.dump(declared._parsed(b"a = 1")) == ast.dump(parse("a = 1"))
    assert outcomes == []


def test_nothing_of_vllm_is_imported() -> None:
    code = (
        "import sys\n"
        "from dray.engine.declared import refuse_arguments\n"
        "refuse_arguments({'dtype': 'auto', 'max_model_len': 8})\n"
        "assert not {'vllm', 'torch'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_tokns", r"^--param max_tokns: .*\(unknown_field\); did you mean max_tokens\?$"),
        ("xyzzy", r"^--param xyzzy: .*\(unknown_field\)$"),
        ("_DEFAULT_SAMPLING_PARAMS", "no request has such a field"),
    ],
)
def test_fields_that_no_request_has(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        refuse_unknown_fields(["temperature", name])


def test_fields_that_requests_have_or_that_change_nothing() -> None:
    refuse_unknown_fields(["max_completion_tokens", "response_format", "echo", "top_k", "user", "best_of"])
    refuse_unknown_fields(["use_activation", "max_tokens_per_doc", "dimensions"])  # of pooling models


@pytest.mark.heavy
def test_the_fields_are_those_of_the_installed_classes() -> None:
    code = (
        "from importlib import import_module\n"
        "from dray.engine.body_fields import _CLASSES\n"
        "from dray.engine.declared import fields_of_class\n"
        "for module, name in _CLASSES:\n"
        "    assert fields_of_class(module, name) == set(getattr(import_module(module), name).model_fields)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
