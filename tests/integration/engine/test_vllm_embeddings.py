"""Embeddings equal those of plain transformers: last token, normalised."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from dray.kinds import Kind
from dray.requests.model import Outcome
from tests.support.engines import NAME, Runner, embedding_spec
from tests.support.mutations import mutations
from tests.support.tiny_model import sentence

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=3)]


def vectors(outcome: Outcome) -> list[Any]:
    assert outcome.response is not None, (outcome.error_code, outcome.error_message)
    return [entry["embedding"] for entry in json.loads(outcome.response)["data"]]


def expected_of(folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    with torch.inference_mode():
        for text in texts:
            last = model(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0, -1]
            found.append(torch.nn.functional.normalize(last, dim=0).numpy())
    return np.stack(found)


def test_embeddings_are_those_of_transformers(embedding: Runner, lively_model: Path) -> None:
    rng = random.Random(11)
    texts = [sentence(rng, rng.randint(1, 60)) for _ in range(50)]
    expected = expected_of(lively_model, texts)
    singles = embedding.run([{"model": NAME, "input": text} for text in texts])
    found = np.array([vectors(outcome)[0] for outcome in singles])
    assert np.abs(found - expected).max() < 1e-3
    lists = embedding.run([{"input": texts[start : start + 10]} for start in range(0, 50, 10)])
    found = np.array([vector for outcome in lists for vector in vectors(outcome)])
    assert np.abs(found - expected).max() < 1e-3
    coded = embedding.run([{"input": texts[:10], "encoding_format": "base64"}])[0]
    found = np.array([np.frombuffer(base64.b64decode(text), dtype="float32") for text in vectors(coded)])
    assert np.abs(found - expected[:10]).max() < 1e-3


def test_the_answer_is_openais_and_the_same_every_time(embedding: Runner) -> None:
    body = {"model": NAME, "input": ["please help", "help"], "encoding_format": "float"}
    first, second = embedding.one(body), embedding.one(body)
    assert first.response == second.response
    found = json.loads(first.response or b"")
    assert (found["id"], found["object"], found["created"], found["model"]) == ("embd-0", "list", 0, NAME)
    assert [entry["index"] for entry in found["data"]] == [0, 1]
    assert found["usage"]["prompt_tokens"] == first.prompt_tokens > 0
    assert first.completion_tokens == 0
    assert 0 < first.total_seconds < 60


def test_refusals(embedding: Runner) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"input": "help", "dimensions": 16}, "invalid_request"),
        ({"input": "help", "encoding_format": "bytes"}, "unsupported_field"),
        ({"input": ""}, "invalid_request"),
        ({"input": []}, "invalid_request"),
        ({"input": 5}, "invalid_request"),
        ({"input": [99999]}, "invalid_request"),
        ({"input": "order help " * 600}, "context_length_exceeded"),
        ({"input": "help", "model": "another"}, "model_mismatch"),
        ({"input": "help", "surprise": 1}, "unknown_field"),
        ({"input": "help", "priority": 1}, "unsupported_field"),
        ({}, "invalid_request"),
    ]
    outcomes = embedding.run(
        [body for case, _ in cases for body in (case, {"input": "fine"})], Kind.EMBEDDING
    )
    assert [outcome.error_code for outcome in outcomes[::2]] == [code for _, code in cases]
    assert all(outcome.response for outcome in outcomes[1::2])
    assert "/" not in (outcomes[0].error_message or ""), "the model is named, not its folder"


def test_another_kind_of_row_is_refused(embedding: Runner, generation: Runner) -> None:
    assert embedding.one({"prompt": "help"}, Kind.COMPLETION).error_code == "unsupported"
    assert generation.one({"input": "help"}, Kind.EMBEDDING).error_code == "unsupported"


FIELDS = [
    *(
        "input",
        "dimensions",
        "encoding_format",
        "truncate_prompt_tokens",
        "truncation_side",
        "padding",
        "user",
    ),
    *("use_activation", "add_special_tokens", "embed_dtype", "endianness", "cache_salt", "messages", "model"),
    *("chat_template_kwargs", "continue_final_message", "request_id", "made_up", "priority"),
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(mutations(FIELDS))
def test_no_body_ends_the_engine(embedding: Runner, mutated: list[dict[str, Any]]) -> None:
    bodies = [{"input": "please help"} | fields for fields in mutated]
    outcomes = embedding.run([*bodies, {"input": "fine"}], Kind.EMBEDDING)
    assert outcomes[-1].response is not None
    for outcome in outcomes:
        assert (outcome.response is None) != (outcome.error_code is None)


def test_a_million_token_ids_are_refused_without_a_fault_for_each(
    embedding: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's union of five forms would take 28 s and 5 GB of faults to tell texts from ids."""

    def union(body: Any) -> Any:
        raise AssertionError("the union was asked")

    monkeypatch.setattr("dray.engine.vllm_adapter.kinds.embedding._read_any", union)
    assert embedding.one({"input": [5] * 1_000_000}, Kind.EMBEDDING).error_code == "context_length_exceeded"
    assert embedding.one({"input": [5, 6, 7]}, Kind.EMBEDDING).response


def test_a_vector_that_is_no_number_is_an_error_row(
    embedding: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored as an answer, a list of null."""
    import torch

    serve = embedding.engine._serve
    encode = serve._client.encode

    def broken(prompt: Any, *args: Any, **options: Any) -> Any:
        ticket = encode(prompt, *args, **options)

        async def landed() -> Any:
            output = await ticket
            if output.prompt_token_ids == [7]:
                output.outputs.data = torch.full_like(output.outputs.data, torch.nan)
            return output

        return landed()

    monkeypatch.setattr(serve._client, "encode", broken)
    bodies = [{"input": [7], "encoding_format": form} for form in ("float", "base64")]
    *lost, fine = embedding.run([*bodies, {"input": [8]}], Kind.EMBEDDING)
    assert [one.error_code for one in lost] == ["invalid_response"] * 2
    assert fine.response


def test_a_template_of_the_engine_arguments_is_read_from_its_file(
    lively_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine: what vLLM's class is given."""
    from dray.engine.vllm_adapter.kinds import embedding as module

    template = lively_model / "embedded.jinja"
    template.write_text("{{ messages[0].content }}")
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        module, "ServingEmbedding", lambda *_, **options: given.update(options) or SimpleNamespace()
    )
    spec = embedding_spec(lively_model)
    arguments = {**spec.arguments, "chat_template": str(template), "chat_template_content_format": "openai"}
    of_text: Any = SimpleNamespace(
        model_config=SimpleNamespace(supports_multimodal_inputs=False), renderer=None
    )
    models: Any = SimpleNamespace(lora_requests={})
    module.EmbeddingServing(replace(spec, arguments=arguments), of_text, models, NAME)
    config = given["chat_template_config"]
    assert (config.chat_template, config.chat_template_content_format) == (template.read_text(), "openai")
