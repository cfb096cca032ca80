"""Rows that the engine takes here, and would not take with another runner or cache: they are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engines import Runner

pytestmark = pytest.mark.integration

TOKENS = [5, 6, 7] * 400
WORDS = "please help me with all of this now " * 5


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "please help", "max_tokens": 4, "temperature": 0} | fields


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3} | fields


def pretend(
    generation: Runner,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fast_prefill: bool = False,
    second_runner: bool = False,
) -> None:
    """Have the front take the engine for one with these settings: a GPU's runner is vLLM's second one."""
    cache = SimpleNamespace(kv_sharing_fast_prefill=fast_prefill)
    config = SimpleNamespace(cache_config=cache, use_v2_model_runner=second_runner)
    monkeypatch.setattr(generation.engine._client, "vllm_config", config)


def test_rows_beyond_the_gpu_runners_buffers_are_refused(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(generation, monkeypatch, second_runner=True)
    tokens, words, few = generation.run(
        [
            completion(allowed_token_ids=TOKENS),
            completion(bad_words=[f"{number} {WORDS}" for number in range(60)]),
            completion(allowed_token_ids=TOKENS[:30], min_tokens=2, bad_words=["please"]),
        ]
    )
    assert (tokens.error_code, words.error_code) == ("request_too_large", "request_too_large")
    assert "`allowed_token_ids` has 1,200 tokens; the engine's GPU runner takes at most 1,024" in (
        tokens.error_message or ""
    )
    assert "`bad_words` has " in (words.error_message or "")
    assert few.response is not None
    monkeypatch.undo()
    assert generation.one(completion(allowed_token_ids=TOKENS)).response is not None  # V1: as it is on a CPU


def test_logprobs_that_vllm_would_get_wrong_are_refused(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its asynchronous engine does."""
    pretend(generation, monkeypatch, fast_prefill=True)
    outcomes = generation.run(
        [completion(prompt_logprobs=1), completion(echo=True, logprobs=1), completion()]
    )
    assert [one.error_code for one in outcomes] == ["unsupported_field", "unsupported_field", None]


def test_tokens_whose_logprobs_would_spoil_those_of_other_rows_are_refused(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(generation, monkeypatch, second_runner=False)
    asked = {"logprobs": True, "top_logprobs": 2}
    spoiler, other = generation.run([chat(**asked, logprob_token_ids=[5, 6]), chat(**asked)])
    assert spoiler.error_code == "unsupported_field"
    assert "V1 model runner" in (spoiler.error_message or "")
    assert other.response is not None
    assert generation.one(completion(logprobs=1, logprob_token_ids=[5])).error_code == "unsupported_field"
