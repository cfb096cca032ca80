"""An engine whose core is a process of its own: the same answers, and every death seen for what it is."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from dray.engine.replica import Replica
from dray.errors import EngineDeadError, EngineStartError
from tests.support.engines import Runner, generation_spec, lines
from tests.support.request_fields import random_bodies

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CORE = "dray.engine.vllm_adapter.core.process"
"""What stands in the command of a core's process."""

BODIES = 120
EXECUTORS = "tests.support.broken_executors"
SECRET = {"name": "x", "schema": {"enum": ["secret words"]}}


class _Apart(Runner):
    """A replica with its core apart."""

    @property
    def core(self) -> psutil.Process:
        return psutil.Process(self.engine._core.pid)


@pytest.fixture
def apart(lively_model: Path) -> Iterator[Callable[..., _Apart]]:
    found: list[_Apart] = []

    def make(**arguments: Any) -> _Apart:
        found.append(_Apart.started(generation_spec(lively_model, engine_core="apart", **arguments)))
        return found[-1]

    yield make
    for one in found:
        one.replica.stop()


def death(runner: Runner, body: dict[str, Any]) -> EngineDeadError:
    session = runner.session()
    runner.replica.feed(session, lines([body]), last=True)
    with pytest.raises(EngineDeadError) as caught:
        list(runner.replica.results(session, 1, 0.02))
    return caught.value


def is_gone(process: psutil.Process, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def same(one: Any, other: Any) -> bool:
    """Whether two answers are the same but for the last digits of log-probabilities."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=1e-4)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.heavy(one_of=9)
def test_answers_are_the_same_bytes(
    generation: Runner, apart: Callable[..., _Apart], caplog: pytest.LogCaptureFixture
) -> None:
    """Log-probabilities may differ in their last digits: which rows share a step depends on the moment."""
    seed = int(os.environ.get("DRAY_SEED", "20261123"))
    bodies = random_bodies(random.Random(seed), int(os.environ.get("DRAY_BODIES", BODIES)))
    engine = apart()
    here = generation.run(bodies)
    there = engine.run(bodies)
    for body, one, other in zip(bodies, here, there, strict=True):
        assert (one.error_code, one.error_message) == (other.error_code, other.error_message), (
            f"{seed}: {body}"
        )
        if one.response != other.response:
            assert one.response is not None
            assert other.response is not None
            assert "logprobs" in str(body), f"seed {seed}: {body}"
            assert same(orjson.loads(one.response), orjson.loads(other.response)), f"seed {seed}: {body}"
        assert (one.prompt_tokens, one.completion_tokens) == (other.prompt_tokens, other.completion_tokens)
    assert sum(outcome.response is not None for outcome in there) > len(bodies) / 2
    timed = [outcome for outcome in there if outcome.first_token_seconds > 0]
    assert len(timed) > len(bodies) / 2
    logged = {(name, text) for _, name, text in engine.replica.status().log if name.startswith("vllm")}
    sent = {(one.name, one.getMessage()) for one in caplog.records if one.filename == "apart.py"}
    assert logged & sent, "what the core logs arrives here"
    core = engine.core
    engine.replica.stop()
    assert is_gone(core)


@pytest.mark.heavy
def test_a_core_that_is_killed_ends_the_engine(apart: Callable[..., _Apart]) -> None:
    folder = Path(tempfile.gettempdir())
    before = set(folder.glob("vllm_dist_*"))
    engine = apart()
    core, session = engine.core, engine.session()
    long = {"prompt": "please help", "max_tokens": 500, "ignore_eos": True}
    engine.replica.feed(session, lines([long] * 64), last=True)
    while engine.replica.status().running < 8:
        time.sleep(0.005)
    core.kill()
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match="by SIGKILL"):
        list(engine.replica.results(session, 64, 0.02))
    assert time.monotonic() - began < 10
    engine.replica.stop()
    assert set(folder.glob("vllm_dist_*")) == before  # by which ranks meet


@pytest.mark.heavy
def test_a_core_that_is_killed_while_idle_is_missed(apart: Callable[..., _Apart]) -> None:
    engine = apart()
    engine.core.kill()
    end = time.monotonic() + 20
    while True:
        try:
            engine.replica.check()
        except EngineDeadError as error:
            assert "by SIGKILL" in str(error)
            return
        assert time.monotonic() < end, "nobody saw it"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("executor", "kind", "oom"), [("Hungry", "MemoryError", True), ("Failing", "RuntimeError", False)]
)
@pytest.mark.heavy
def test_a_core_that_breaks_says_why_and_quotes_nothing(
    apart: Callable[..., _Apart], capfd: pytest.CaptureFixture[str], executor: str, kind: str, *, oom: bool
) -> None:
    engine = apart(distributed_executor_backend=f"{EXECUTORS}.{executor}")
    core = engine.core
    words = {"stop": ["secret words"], "response_format": {"type": "json_schema", "json_schema": SECRET}}
    error = death(engine, {"prompt": "please help", **words})
    assert str(error) == f"{kind} in the engine's core"
    assert error.oom is oom
    assert is_gone(core)
    said = "".join([*capfd.readouterr(), *(one[2] for one in engine.replica.status().log)])
    assert "secret words" not in said
    assert "broken_executors.py" in said  # where it came from is there


@pytest.mark.heavy
def test_a_core_that_does_not_come_up_says_why(lively_model: Path) -> None:
    spec = generation_spec(
        lively_model, engine_core="apart", distributed_executor_backend=f"{EXECUTORS}.Unable"
    )
    replica = Replica("unable", spec, exit_when_dead=False)
    with pytest.raises(EngineStartError, match="RuntimeError: no device is free"):
        replica.ready()
    assert not [child for child in psutil.Process().children() if CORE in " ".join(child.cmdline())]


FRONT = """
import sys, time
from pathlib import Path
from dray.engine.replica import Replica
from tests.support.engines import generation_spec
replica = Replica("front", generation_spec(Path(sys.argv[1]), engine_core="apart"))
replica.ready()
print("ready", flush=True)
line = b'{"i":0,"c":"a","u":"/v1/completions","b":{"prompt":"help","max_tokens":400}}'
replica.feed("s", [line] * 40, last=True)
list(replica.results("s", 64))
"""


@pytest.mark.heavy
def test_no_core_outlives_its_front(lively_model: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FRONT, str(lively_model)], stdout=subprocess.PIPE, text=True
    ) as front:
        assert front.stdout is not None
        assert "ready\n" in iter(front.stdout.readline, "")  # after what vLLM logs
        core = next(
            child for child in psutil.Process(front.pid).children() if CORE in " ".join(child.cmdline())
        )
        front.send_signal(signal.SIGKILL)
    assert is_gone(core)


@pytest.mark.heavy
def test_a_device_that_stands_still_is_seen(apart: Callable[..., _Apart]) -> None:
    engine = apart(distributed_executor_backend=f"{EXECUTORS}.Stuck")
    session = engine.session()
    engine.replica.feed(session, lines([{"prompt": "help"}]), last=True)
    end = time.monotonic() + 20
    while (engine.replica._loop.idle_seconds() or 0) < 1:
        assert time.monotonic() < end
        time.sleep(0.05)
