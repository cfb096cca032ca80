"""The simulated engine: deterministic, timed, and able to fail on demand."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from base64 import b64decode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.protocol import EngineSpec
from dray.engine.simulated import SimulatedEngine, SimulatedSettings
from dray.errors import ConfigError, RequestRefused
from dray.kinds import Kind
from dray.requests.model import Outcome, Request
from tests.support.openai_reader import response_class

pytestmark = pytest.mark.unit


def engine(kind: Kind = Kind.CHAT, model_name: str | None = None, **arguments: Any) -> SimulatedEngine:
    return SimulatedEngine(
        EngineSpec(name="simulated", model="m", kind=kind, model_name=model_name, arguments=arguments)
    )


def row(index: int, prompt: str = "help", **fields: Any) -> Request:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4} | fields
    return Request(index=index, custom_id=f"c{index}", url=Kind.CHAT.url, body=body)


def finish(target: SimulatedEngine, count: int, seconds: float = 5) -> list[tuple[int, Outcome]]:
    found: list[tuple[int, Outcome]] = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        found += target.step()
    return found


@given(st.lists(st.text(max_size=30), min_size=1, max_size=20), st.integers(0, 3))
def test_answers_are_a_function_of_prompt_and_seed(prompts: list[str], seed: int) -> None:
    def answers(order: list[int]) -> dict[int, bytes | None]:
        target = engine(seed=seed, max_num_seqs=3)
        for index in order:
            target.submit(index, row(index, prompts[index]))
        return {outcome.index: outcome.response for _, outcome in finish(target, len(order))}

    forward = list(range(len(prompts)))
    assert answers(forward) == answers(forward[::-1])
    assert len(answers(forward)) == len(prompts)


def test_another_seed_and_another_prompt_give_another_text() -> None:
    def text(prompt: str, seed: int) -> str:
        target = engine(seed=seed)
        target.submit(0, row(0, prompt))
        answer: str = orjson.loads(finish(target, 1)[0][1].response or b"")["choices"][0]["message"][
            "content"
        ]
        return answer

    assert len({text("a", 0), text("b", 0), text("a", 1)}) == 3


def test_kinds_and_usage() -> None:
    chat, completion, embedding = (engine(kind) for kind in (Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING))
    chat.submit(0, row(0, "x" * 40))
    completion.submit(0, Request(index=0, custom_id="a", url=Kind.COMPLETION.url, body={"prompt": "hi"}))
    embedding.submit(0, Request(index=0, custom_id="a", url=Kind.EMBEDDING.url, body={"input": "hi"}))
    outcomes = [finish(target, 1)[0][1] for target in (chat, completion, embedding)]
    bodies = [orjson.loads(outcome.response or b"") for outcome in outcomes]
    assert [body["object"] for body in bodies] == ["chat.completion", "text_completion", "list"]
    assert (outcomes[0].prompt_tokens, outcomes[0].completion_tokens) == (10, 4)
    assert outcomes[2].completion_tokens == 0
    assert bodies[2]["data"][0]["embedding"]


def test_a_response_has_the_length_that_it_asks_for() -> None:
    target = engine(Kind.RESPONSE)
    body = {"input": "x" * 40, "instructions": "y" * 39, "max_output_tokens": 4}
    target.submit(0, Request(index=0, custom_id="a", url=Kind.RESPONSE.url, body=body))
    outcome = finish(target, 1)[0][1]
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (20, 4)
    found = response_class().model_construct(**orjson.loads(outcome.response or b""))
    assert (found.object, found.created_at, len(found.output)) == ("response", 0, 1)
    with pytest.raises(RequestRefused, match="no input"):
        target.submit(1, Request(index=0, custom_id="a", url=Kind.RESPONSE.url, body={"instructions": "a"}))


def test_a_length_may_be_a_float_without_a_fraction() -> None:
    target = engine()
    target.submit(0, row(0, max_tokens=3.0))
    assert finish(target, 1)[0][1].completion_tokens == 3
    for wrong in (3.5, -1.0, "many", True, [3]):
        with pytest.raises(RequestRefused, match="max_tokens must be a whole number"):
            target.submit(1, row(1, max_tokens=wrong))


def test_rankings_are_as_long_as_is_asked_for() -> None:
    target = engine(Kind.RERANK)
    url = Kind.RERANK.url
    asked: dict[str, Any] = {"query": "hi", "documents": ["a", "b", "c"]}
    tops: list[dict[str, Any]] = [{}, {"top_n": 0}, {"top_n": 2}, {"top_n": "1"}, {"top_n": 9}]
    tops += [{"top_n": 2.0}, {"top_n": None}]  # as pandas writes a column with a gap
    for index, top in enumerate(tops):
        target.submit(index, Request(index=index, custom_id="a", url=url, body=asked | top))
    bodies = [orjson.loads(outcome.response or b"") for _, outcome in sorted(finish(target, 7))]
    assert [len(body["results"]) for body in bodies] == [3, 3, 2, 1, 3, 2, 3]
    scores = [one["relevance_score"] for one in bodies[0]["results"]]
    assert scores == sorted(scores, reverse=True)
    for wrong in (-1, "many", 1.5, True, [1]):
        with pytest.raises(RequestRefused, match="top_n"):
            target.submit(0, Request(index=0, custom_id="a", url=url, body=asked | {"top_n": wrong}))


def test_embeddings_are_as_long_and_in_the_form_that_is_asked_for() -> None:
    target = engine(Kind.EMBEDDING)
    for index, (form, length) in enumerate((("float", 1024.0), ("base64", 1024))):
        body = {"input": "hi", "dimensions": length, "encoding_format": form}
        target.submit(index, Request(index=index, custom_id="a", url=Kind.EMBEDDING.url, body=body))
    bodies = [orjson.loads(outcome.response or b"") for _, outcome in sorted(finish(target, 2))]
    numbers, text = (body["data"][0]["embedding"] for body in bodies)
    assert len(set(numbers)) > 200
    assert numbers == pytest.approx(list(struct.unpack("<1024f", b64decode(text))))
    for wrong in (0, "many", True, 10**9, 8.5):
        with pytest.raises(RequestRefused, match="dimensions"):
            body = {"input": "hi", "dimensions": wrong}
            target.submit(0, Request(index=0, custom_id="a", url=Kind.EMBEDDING.url, body=body))


def test_time_per_token_and_places() -> None:
    target = engine(seconds_per_token=0.01, max_num_seqs=2)
    for index in range(4):
        target.submit(index, row(index))
    began = time.monotonic()
    assert len(finish(target, 4)) == 4
    taken = time.monotonic() - began
    assert taken >= 2 * 4 * 0.01, "two at a time, four tokens each"


def test_failures_on_demand() -> None:
    target = engine(error_on="bad", stall_on="slow", max_model_len=100, model_name="m")
    with pytest.raises(RequestRefused) as refused:
        target.submit(0, row(0, "so bad"))
    assert refused.value.code == "simulated_error"
    target.submit(1, row(1, "slow"))
    target.submit(2, row(2, "fine"))
    assert [key for key, _ in finish(target, 2, seconds=0.3)] == [2]
    for code, request in {
        "context_length_exceeded": row(3, "x" * 500),
        "model_mismatch": row(4, model="other"),
        "stream_unsupported": row(5, stream=True),
        "invalid_request": row(6, messages="no list"),
    }.items():
        with pytest.raises(RequestRefused) as refused:
            target.submit(9, request)
        assert refused.value.code == code


def test_abort_gives_places_back() -> None:
    target = engine(seconds_per_token=10, stall_on="slow", max_num_seqs=2)
    target.submit(0, row(0, "slow"))
    target.submit(1, row(1, "fine"))
    target.submit(2, row(2, "waits"))
    target.step()
    target.abort([0, 1, 2, 77])
    assert finish(target, 1, seconds=0.2) == []


def test_a_crash_ends_the_process() -> None:
    code = """
from tests.unit.engine.test_simulated import engine, row
engine(crash_on="boom").submit(0, row(0, "boom"))
"""
    run = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True)
    assert run.returncode == 70, run.stderr


def test_settings_are_parsed_and_checked() -> None:
    settings = SimulatedSettings.parse({"seconds_per_token": "0.5", "max_num_seqs": "8", "crash_on": "x"})
    assert (settings.seconds_per_token, settings.max_num_seqs, settings.crash_on) == (0.5, 8, "x")
    for wrong in ({"speed": 1}, {"max_num_seqs": "many"}, {"max_num_seqs": 0}):
        with pytest.raises(ConfigError, match="simulated engine"):
            SimulatedSettings.parse(wrong)
