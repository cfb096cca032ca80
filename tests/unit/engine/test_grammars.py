"""Grammars are compiled with limits, in a process that may die: xgrammar's own compiler, and no engine."""

from __future__ import annotations

import json
import time
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dray.engine.grammars import Grammar, GrammarPending, Grammars
from dray.engine.vllm_engine import VllmEngine
from dray.errors import RequestRefused
from dray.requests.model import Kind, Request

pytestmark = pytest.mark.unit

PATTERN = Grammar("json", '{"type": "string", "pattern": "^[A-Z]{4}$"}')


def bomb(name: str) -> Grammar:
    """800 KB that keep xgrammar busy for minutes."""
    return Grammar(
        "json", json.dumps({"enum": [f"{name}-{number}-{number * 7919}" for number in range(40_000)]})
    )


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    xgrammar = pytest.importorskip("xgrammar")
    tokens = [bytes([number]) for number in range(256)]
    info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, stop_token_ids=[0])
    made = Grammars(info.serialize_json, seconds=1)
    yield made
    made.close()


def judged(grammars: Grammars, wanted: list[Grammar]) -> list[str | None]:
    """What becomes of each: None, or the refusal's message."""
    found: dict[str, str | None] = {}
    end = time.monotonic() + 120
    while len(found) < len(wanted):
        assert time.monotonic() < end, "waited in vain"
        for grammar in wanted:
            try:
                grammars.require(grammar)
                found[grammar.text] = None
            except RequestRefused as refusal:
                assert refusal.code == "invalid_json_schema"
                found[grammar.text] = refusal.message
            except GrammarPending:
                grammars.arrived(0.05)
    return [found[grammar.text] for grammar in wanted]


def test_one_that_takes_too_long_is_refused_and_the_others_are_not(grammars: Grammars) -> None:
    """And when the process dies, the next one gets what it had not answered."""
    with pytest.raises(GrammarPending):
        grammars.require(bomb("a"))
    assert grammars._process is not None
    grammars._process._process.kill()
    late, fine, wrong, regex = judged(
        grammars, [bomb("a"), PATTERN, Grammar("json", "{" * 2000), Grammar("regex", "[a-f]{3}")]
    )
    assert "took longer than 1 s of processor time" in (late or "")
    assert fine is None
    assert wrong is None, "vLLM says what is wrong with it"
    assert regex is None


def test_plain_ones_are_not_looked_at() -> None:
    def never() -> str:
        raise AssertionError("the process was to be started")

    grammars = Grammars(never)
    grammars.require(Grammar("json", '{"type": "object", "properties": {"urgent": {"type": "boolean"}}}'))
    grammars.require(Grammar("choice", '["spam", "ham"]'))
    assert not grammars.waiting
    for kind, text in (
        ("regex", "a"),
        ("json", '{"$ref": "#"}'),
        ("json", "x" * 1025),
        ("json", '"p\\u0061ttern"'),
    ):
        assert not Grammar(kind, text).plain


class Serve:
    """Answers at once what its grammar allows."""

    model_name = "m"

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars

    def start(self, request: Request) -> Coroutine[Any, Any, Any]:
        async def answer() -> bytes:
            self._grammars.require(request.body["grammar"])
            return b"{}"

        return answer()

    def response(self, request: Request, answer: bytes) -> bytes:
        return answer


def test_rows_wait_for_the_verdict_and_may_be_aborted(grammars: Grammars) -> None:
    engine = object.__new__(VllmEngine)
    engine._serve = Serve(grammars)
    engine._client = SimpleNamespace(  # type: ignore[assignment]
        grammars=grammars, opened=[], progress=0, abort=lambda tickets: None
    )
    engine._flights, engine._by_ticket, engine._finished, engine._parked = {}, {}, [], {}
    engine._judged, engine._bundle, engine._folder = 0, None, "/m"
    engine.info = SimpleNamespace(model="m")  # type: ignore[assignment]
    fine = Grammar("json", '{"type": "string", "pattern": "^[a-z]{9}$"}')
    grammars._verdicts.clear()
    for key, grammar in enumerate([PATTERN, fine, fine, Grammar("regex", "[0-9]{2}")]):
        engine.submit(key, Request(index=key, custom_id=None, url=Kind.CHAT.url, body={"grammar": grammar}))
    engine.abort([2])
    assert len(engine._parked) == 3
    found: dict[int, str | None] = {}
    before, end = engine.produced(), time.monotonic() + 120
    while len(found) < 3:
        assert time.monotonic() < end, "waited in vain"
        found.update((key, outcome.error_code) for key, outcome in engine.step())
    assert found == {0: None, 1: None, 3: None}
    assert engine.produced() != before
    assert not engine._flights
    assert not engine._parked
