"""A row that would end an engine on a GPU is refused, and its neighbours are answered."""

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


def test_rows_beyond_the_gpu_runners_buffers_are_refused(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation.engine._client, "vllm_config", SimpleNamespace(
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False), use_v2_model_runner=True
    ))  # fmt: skip
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
