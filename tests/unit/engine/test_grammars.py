"""Grammars are compiled with limits, in a process that may die: xgrammar's own compiler, and no engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from dray.engine.grammars import Grammar, GrammarPending, Grammars
from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.flights import Flights
from dray.errors import EngineDeadError, RequestRefused
from dray.kinds import Kind
from dray.requests.model import Request

pytestmark = pytest.mark.unit

T = TypeVar("T")
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for a signal, and reads /proc")

PATTERN = Grammar("json", '{"type": "string", "pattern": "^[A-Z]{4}$"}')


def bomb(name: str) -> Grammar:
    """800 KB that keep xgrammar busy for minutes."""
    return Grammar(
        "json", json.dumps({"enum": [f"{name}-{number}-{number * 7919}" for number in range(40_000)]})
    )


def described() -> str:
    """A tokenizer of 256 tokens."""
    xgrammar = pytest.importorskip("xgrammar")
    tokens = [bytes([number]) for number in range(256)]
    info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, stop_token_ids=[0])
    text: str = info.serialize_json()
    return text


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    tokenizer = described()
    made = Grammars(lambda: tokenizer, seconds=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[Grammars]:
    """Gives each grammar more time than a test takes."""
    tokenizer = described()
    made = Grammars(lambda: tokenizer, seconds=600)
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


def soon(find: Callable[[], T | None], what: str) -> T:
    """What ``find`` finds, within a minute."""
    end = time.monotonic() + 60
    while (found := find()) is None:
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


def compilers(grammars: Grammars) -> int:
    """The process that forks for each grammar."""

    def pid() -> int | None:
        process = grammars._process._process if grammars._process is not None else None
        return process.pid if process is not None else None

    return soon(pid, "no process was started")


def children(pid: int) -> list[int]:
    """The children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def a_child(pid: int, *, but: int = 0) -> int:
    """A child that compiles."""
    return soon(lambda: next((one for one in children(pid) if one != but), None), "no child compiles")


def lives(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(*pids: int) -> None:
    """Wait for the end of processes."""
    soon(lambda: None if any(map(lives, pids)) else True, f"of {pids}, some live")


@pytest.mark.parametrize("form", ["structures", "format"])
def test_a_structural_tag_keeps_the_limits_in_both_forms(grammars: Grammars, form: str) -> None:
    def tag(schema: dict[str, Any]) -> Grammar:
        old = {"begin": "<f>", "schema": schema, "end": "</f>"}
        new = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}
        asked: dict[str, dict[str, Any]] = {
            "structures": {"structures": [old], "triggers": ["<f"]},
            "format": {"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [new]}},
        }
        return Grammar("tag", json.dumps({"type": "structural_tag", **asked[form]}))

    late, fine = judged(grammars, [tag(json.loads(bomb("t").text)), tag({"type": "boolean"})])
    assert "took longer than 1 s of processor time" in (late or "")
    assert fine is None


@pytest.mark.heavy(one_of=3)
def test_one_that_takes_too_long_is_refused_and_the_others_are_not(grammars: Grammars) -> None:
    """And when the process dies, the next one gets what it had not answered."""
    with pytest.raises(GrammarPending):
        grammars.require(bomb("a"))
    os.kill(compilers(grammars), signal.SIGKILL)
    late, fine, wrong, regex = judged(
        grammars, [bomb("a"), PATTERN, Grammar("json", "{" * 2000), Grammar("regex", "[a-f]{3}")]
    )
    assert "took longer than 1 s of processor time" in (late or "")
    assert fine is None
    assert wrong is None, "vLLM says what is wrong with it"
    assert regex is None


@linux
def test_one_whose_compiler_is_killed_is_tried_again_and_then_refused_for_what_it_is(
    patient: Grammars,
) -> None:
    """As the kernel does that lacks memory. One death refuses nothing: the kernel may have meant another."""
    with pytest.raises(GrammarPending):
        patient.require(bomb("killed"))
    pid = compilers(patient)
    first = a_child(pid)
    os.kill(first, signal.SIGKILL)
    second = a_child(pid, but=first)
    os.kill(second, signal.SIGKILL)
    refused, fine = judged(patient, [bomb("killed"), PATTERN])
    assert "SIGKILL" in (refused or "")
    assert "too much memory" in (refused or "")
    assert "seconds" not in (refused or "")
    assert fine is None
    assert compilers(patient) == pid, "the others' process lives on"


@linux
def test_one_that_crashes_its_compiler_is_refused_for_what_it_is(patient: Grammars) -> None:
    with pytest.raises(GrammarPending):
        patient.require(bomb("crashes"))
    os.kill(a_child(compilers(patient)), signal.SIGSEGV)
    told = judged(patient, [bomb("crashes")])[0] or ""
    assert "SIGSEGV" in told or "SIGABRT" in told, told  # a library's handler turns the one into the other


@pytest.mark.heavy(one_of=3)
@linux
def test_children_die_with_their_process_and_that_outlives_the_thread_that_asked(patient: Grammars) -> None:
    """The kernel's signal comes when a thread ends: that must be none that merely asks."""

    def ask() -> None:
        with pytest.raises(GrammarPending):
            patient.require(bomb("asked"))

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join()
    pid = compilers(patient)
    child = a_child(pid)
    assert judged(patient, [Grammar("regex", "[0-9]{3}")]) == [None]
    assert compilers(patient) == pid
    os.kill(pid, signal.SIGKILL)
    gone(child)


REPLICA = """
import os, sys, time
from contextlib import suppress
from dray.engine.grammars import GrammarPending, Grammars
from tests.unit.engine.test_grammars import a_child, bomb, compilers, described

grammars = Grammars(described, seconds=600)
with suppress(GrammarPending):
    grammars.require(bomb("replica"))
pid = compilers(grammars)
child = a_child(pid)
worker = os.fork()  # as engines with several ranks do: it inherits the pipes
if worker:
    print(pid, child, worker, flush=True)
time.sleep(600)
"""


@linux
@pytest.mark.heavy
def test_nothing_outlives_a_replica_that_is_killed() -> None:
    """Also where a process of the replica's holds the pipe whose end would tell."""
    pytest.importorskip("xgrammar")
    with subprocess.Popen([sys.executable, "-c", REPLICA], stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        pid, child, worker = map(int, replica.stdout.readline().split())
        try:
            assert lives(pid)
            assert lives(child)
            replica.kill()
            replica.wait()
            gone(pid, child)
            assert lives(worker)
        finally:
            replica.kill()
            for one in (worker, pid, child):
                if lives(one):
                    os.kill(one, signal.SIGKILL)


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

    @classmethod
    def check(cls, spec: EngineSpec, config: object) -> None:
        """It is asked no more."""

    def start(self, request: Request) -> Coroutine[Any, Any, Any]:
        async def answer() -> bytes:
            self._grammars.require(request.body["grammar"])
            return b"{}"

        return answer()

    def response(self, request: Request, answer: bytes) -> bytes:
        return answer

    def close(self) -> None:
        """It has no threads."""


@pytest.mark.heavy(one_of=3)
def test_rows_wait_for_the_verdict_and_may_be_aborted(grammars: Grammars) -> None:
    client: Any = SimpleNamespace(grammars=grammars, opened=[], abort=lambda tickets: None)
    flights = Flights(client, Serve(grammars), "/m", lambda error: EngineDeadError(str(error)), bool)
    fine = Grammar("json", '{"type": "string", "pattern": "^[a-z]{9}$"}')
    grammars._verdicts.clear()
    for key, grammar in enumerate([PATTERN, fine, fine, Grammar("regex", "[0-9]{2}")]):
        body = {"grammar": grammar}
        flights.begin(key, Request(index=key, custom_id=f"row-{key}", url=Kind.CHAT.url, body=body))
    flights.abort([2])
    assert len(flights._parked) == 3
    found: dict[int, str | None] = {}
    before, end = flights.moved(), time.monotonic() + 120
    while len(found) < 3:
        assert time.monotonic() < end, "waited in vain"
        flights.go_on()
        found.update((key, outcome.error_code) for key, outcome in flights.take_finished())
    assert found == {0: None, 1: None, 3: None}
    assert flights.moved() != before
    assert not flights._by_key
    assert not flights._parked
