"""Rows whose lists the model runner for GPUs has no room for: there they would end the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from dray.engine.vllm_adapter.runner_limits import refuse_beyond_buffers
from dray.errors import RequestRefused

pytestmark = pytest.mark.unit


def params(**fields: Any) -> Any:
    """vLLM's of a row, after its tokenizer was asked for the tokens of ``bad_words``."""
    from vllm import SamplingParams

    words = fields.pop("bad_words", None)
    found = SamplingParams(**fields)
    found._bad_words_token_ids = words
    return found


LONGEST = [
    ("allowed_token_ids", {"allowed_token_ids": list(range(1024))}),
    ("logit_bias", {"logit_bias": dict.fromkeys(range(1024), 1.0)}),
    ("stop_token_ids", {"stop_token_ids": list(range(128)), "min_tokens": 1}),
    ("bad_words", {"bad_words": [[1] * 11] * 92 + [[1] * 12]}),
]


def longer(fields: dict[str, Any]) -> dict[str, Any]:
    """The same with one more of them."""
    more: dict[str, Callable[[Any], Any]] = {
        "allowed_token_ids": lambda ids: [*ids, 5000],
        "stop_token_ids": lambda ids: [*ids, 5000],
        "logit_bias": lambda biases: {**biases, 5000: 1.0},
        "bad_words": lambda words: [*words, [1]],
    }
    return {name: more[name](value) if name in more else value for name, value in fields.items()}


@pytest.mark.parametrize(("name", "fields"), LONGEST, ids=[name for name, _ in LONGEST])
def test_lists_as_long_as_the_buffers_are_taken_and_longer_ones_are_not(
    name: str, fields: dict[str, Any]
) -> None:
    on_gpu, on_cpu = SimpleNamespace(use_v2_model_runner=True), SimpleNamespace(use_v2_model_runner=False)
    refuse_beyond_buffers(params(**fields), on_gpu)
    refuse_beyond_buffers(params(**longer(fields)), on_cpu)
    told = rf"^`{name}` has [\d,]+ tokens.*; the engine's GPU runner takes at most (128|1,024)$"
    with pytest.raises(RequestRefused) as refusal:
        refuse_beyond_buffers(params(**longer(fields)), on_gpu)
    assert (refusal.value.code, refusal.value.param) == ("request_too_large", name)
    assert re.fullmatch(told, refusal.value.message), refusal.value.message


def test_stop_tokens_without_min_tokens_take_no_room() -> None:
    many = params(stop_token_ids=list(range(500)))
    refuse_beyond_buffers(many, SimpleNamespace(use_v2_model_runner=True))


@pytest.mark.parametrize(("name", "fields"), LONGEST, ids=[name for name, _ in LONGEST])
def test_vllms_runner_raises_for_what_is_refused_here(name: str, fields: dict[str, Any]) -> None:
    """In the core's process, whose end that is; where it raises no more, this module can go."""
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState

    state = BadWordsState if name == "bad_words" else LogitBiasState
    buffers = MagicMock(prompt_len_np=[4])
    state.add_request(buffers, 0, params(**fields))
    with pytest.raises(ValueError, match="Too many"):
        state.add_request(buffers, 0, params(**longer(fields)))
