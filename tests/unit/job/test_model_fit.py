"""What is said of a model before an engine starts: names of the hub, lengths, tokenizers, typos."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.errors import ConfigError
from dray.job.options import checks
from dray.job.options.checks import check_weights
from dray.job.options.model_files import check_model, refuse_misfit, refuse_typo
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.kinds import Overflow
from dray.requests.sources import RowDefaults
from dray.weights import Manifest
from dray.weights.source.manifest import ModelFile

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-0.5B-Instruct"])
def test_a_name_of_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for written in (name, str(tmp_path / name)):  # the command line makes paths absolute
        with pytest.raises(ConfigError, match=rf"no such directory; .*; for the hub write hf://{name}$"):
            check_model(written)


@pytest.mark.parametrize("path", ["/models/llama", "models", "a/b/c", "./a b/c"])
def test_what_is_no_name_of_the_hub(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no such directory; .*or its URI$"):
        check_model(path)


def _model(folder: Path, *, tokenizer: str | None = "tokenizer.json", **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (folder / tokenizer).write_text('{"model": {}}')
    return str(folder)


def test_longer_than_the_model(tmp_path: Path) -> None:
    model = _model(tmp_path, max_position_embeddings=512, rope_parameters={"rope_type": "default"})
    refuse_misfit(model, {"max_model_len": 512})
    refuse_misfit(model, {})
    with pytest.raises(ConfigError) as refused:
        refuse_misfit(model, {"max_model_len": 4096})
    assert str(refused.value) == (
        "max_model_len 4096 is more than the model's own 512 (max_position_embeddings in its config.json); "
        "give at most 512, or leave it out: longer rows become error rows"
    )


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        ({"max_position_embeddings": 512, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, {}),
        ({"max_position_embeddings": 512, "rope_parameters": {"full": {"factor": 8.0}}}, {}),
        ({"max_position_embeddings": 512}, {"hf_overrides": {"max_position_embeddings": 8192}}),
        ({"max_position_embeddings": 512, "model_max_length": 8192}, {}),
        ({"text_config": {"max_position_embeddings": 8192}}, {}),
        ({}, {}),
    ],
)
def test_what_vllm_alone_can_work_out_is_left_to_it(
    config: dict[str, Any], arguments: dict[str, Any], tmp_path: Path
) -> None:
    refuse_misfit(_model(tmp_path, **config), {"max_model_len": 4096, **arguments})


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    model = _model(tmp_path, tokenizer=None)
    with pytest.raises(ConfigError, match=r"no tokenizer in it .*--engine-arg tokenizer=FOLDER"):
        refuse_misfit(model, {})
    refuse_misfit(model, {"tokenizer": "/models/other"})
    refuse_misfit(model, {"skip_tokenizer_init": True})


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tokenizer.json", "{}", "no object with 'model' in it"),
        ("tokenizer.json", "[]", "no object with 'model' in it"),
        ("tokenizer.json", '{"model": {', "not valid JSON"),
        ("tokenizer_config.json", "", "not valid JSON"),
        ("tokenizer_config.json", "1", "no JSON object in it"),
    ],
)
def test_a_tokenizer_whose_file_is_broken(name: str, content: str, told: str, tmp_path: Path) -> None:
    model = _model(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as refused:
        refuse_misfit(model, {})
    assert str(refused.value).startswith(f"{tmp_path / name}: {told}, so no tokenizer can be loaded")
    refuse_misfit(model, {"tokenizer": "/models/other"})


@pytest.mark.parametrize(
    "name", ["tokenizer.model", "vocab.txt", "tekken.json", "source.spm", "qwen.tiktoken"]
)
def test_tokenizers_of_all_kinds(name: str, tmp_path: Path) -> None:
    refuse_misfit(_model(tmp_path, tokenizer=name), {})


def test_a_word_may_stand_for_the_model_that_nobody_reads_but_not_a_typo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for fine in ("none", "simulated", str(tmp_path / "none"), str(tmp_path), "s3://bucket/model", "hf://a/b"):
        refuse_typo(fine)
    for typo in ("models/lama", "/modles/llama", str(tmp_path / "a" / "b")):
        with pytest.raises(ConfigError, match="no such directory; the simulated engine reads no model"):
            refuse_typo(typo)


def _settings(
    model: str, make: Callable[..., JobSettings], *, overflow: Overflow = "error", **changes: Any
) -> JobSettings:
    request = JobRequest(input=[], model=model, output="", overflow=overflow)
    return make(engine="vllm", model=model, request=request, **changes)


@pytest.mark.parametrize(
    ("sampling", "arguments", "overflow", "refused"),
    [
        ({"max_tokens": 1024}, {}, "error", "max_tokens 1,024 is more than the context of 512 tokens"),
        ({"max_tokens": 1024}, {}, "cut-head", "max_tokens 1,024 is more than the context of 512 tokens"),
        ({"max_completion_tokens": 257}, {"max_model_len": 256}, "error", "give at most 256, or --overflow"),
        ({"max_tokens": 1024}, {}, "shorten", None),
        ({"max_tokens": 512}, {}, "error", None),
        ({}, {}, "error", None),
        ({"max_tokens": 1024}, {"hf_overrides": {"max_position_embeddings": 8192}}, "error", None),
        ({"max_tokens": 1024}, {"max_model_len": -1}, "error", None),
    ],
)
def test_answers_longer_than_the_context(
    sampling: dict[str, Any],
    arguments: dict[str, Any],
    overflow: Overflow,
    refused: str | None,
    tmp_path: Path,
    make_settings: Callable[..., JobSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "checked_weights", lambda *_, **__: None)
    model = _model(tmp_path, max_position_embeddings=512)
    settings = _settings(
        model,
        make_settings,
        overflow=overflow,
        defaults=RowDefaults(sampling=sampling),
        engine_arguments=arguments,
    )
    if refused is None:
        check_weights(settings)
        return
    with pytest.raises(ConfigError, match=refused):
        check_weights(settings)


@pytest.mark.parametrize(
    ("family", "sampling", "arguments", "refused"),
    [
        (
            "gpt_oss",
            {"chat_template_kwargs": {"reasoning_effort": "low"}},
            {},
            "`reasoning_effort` is a field",
        ),
        ("gpt_oss", {"continue_final_message": True}, {}, "--param continue_final_message"),
        (
            "gpt_oss",
            {"chat_template_kwargs": {}, "echo": True},
            {"chat_template_content_format": "auto"},
            None,
        ),
        ("gpt_oss", {"chat_template_kwargs": {"a": 1}}, {"hf_overrides": {"model_type": "qwen3"}}, None),
        ("qwen3", {"chat_template_kwargs": {"enable_thinking": False}}, {}, None),
    ],
)
def test_what_gpt_oss_would_not_read_is_refused_for_all_rows(
    family: str,
    sampling: dict[str, Any],
    arguments: dict[str, Any],
    refused: str | None,
    tmp_path: Path,
    make_settings: Callable[..., JobSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fields of chats; what completions have too is refused row by row."""
    monkeypatch.setattr(checks, "checked_weights", lambda *_, **__: None)
    model = _model(tmp_path, model_type=family)
    defaults = RowDefaults(sampling=sampling)
    settings = _settings(model, make_settings, defaults=defaults, engine_arguments=arguments)
    if refused is None:
        check_weights(settings)
        return
    with pytest.raises(ConfigError, match=refused):
        check_weights(settings)


def test_mistrals_format_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an address; and for a local folder before an engine starts."""
    files = (ModelFile(name="model.safetensors", size=1, etag="e"),)
    monkeypatch.setattr(checks, "checked_weights", lambda *a, **k: Manifest(uri="s3://b/m", files=files))
    settings: Any = SimpleNamespace(
        engine="vllm", model="s3://b/m", model_access=None, has_dummy_weights=False,
        engine_arguments={"load_format": "mistral"},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="dray fetches none of"):
        check_weights(settings)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text('{"model": {}}')
    monkeypatch.setattr(checks, "checked_weights", lambda *a, **k: None)
    settings.model = str(tmp_path)
    with pytest.raises(ConfigError, match="there is none in it"):
        check_weights(settings)
