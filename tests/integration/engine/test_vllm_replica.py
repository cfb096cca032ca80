"""Sessions, admission and failures of a replica around a real engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dray.engine.protocol import EngineSpec
from dray.engine.replica import ENGINE_DEAD_EXIT, Replica
from dray.errors import ConfigError, EngineStartError
from dray.kinds import Kind
from dray.requests.model import Outcome
from tests.support.engines import MAX_NUM_SEQS, Runner, generation_spec, lines

pytestmark = pytest.mark.integration


def long_row(number: int, tokens: int = 300) -> dict[str, Any]:
    return {"prompt": [5 + number, 6, 7], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def wait_for(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def collect(runner: Runner, session: str) -> list[Outcome]:
    return [outcome for batch in runner.replica.results(session, 16, 0.02) for outcome in batch]


def test_abort_frees_the_engine(generation: Runner) -> None:
    replica, session = generation.replica, generation.session()
    several = {"n": 3, "temperature": 1.0, "prompt": ["please help", "the laptop"]}
    rows = [long_row(number) | (several if number % 2 else {}) for number in range(100)]
    replica.feed(session, lines(rows), last=True)
    found: list[Outcome] = []
    reader = threading.Thread(target=lambda: found.extend(collect(generation, session)))
    reader.start()
    wait_for(lambda: replica.status().running > 0)
    replica.abort(session)
    reader.join(timeout=60)
    assert not reader.is_alive(), "the reader sees the end"
    wait_for(lambda: replica.status().running == 0, seconds=10)
    assert len(found) < 100
    vllm, scheduler = generation.engine._engine, generation.engine._engine.engine_core.engine_core.scheduler
    assert vllm.get_num_unfinished_requests() == 0
    assert not scheduler.running
    assert not scheduler.waiting
    assert not generation.engine._client.tickets
    assert not generation.engine._client._timings._waiting, "of several answers, one id is followed"
    assert generation.one(long_row(1, tokens=4)).completion_tokens == 4
    replica.feed(session, lines([long_row(1)]), last=True)
    assert replica.status().waiting == 0, "rows that come after the abort are dropped"


def test_two_sessions_share_the_engine_and_admission_is_bounded(generation: Runner) -> None:
    replica = generation.replica
    first, second = generation.session(), generation.session()
    found: dict[str, list[Outcome]] = {}
    replica.feed(first, lines([long_row(number, 60) for number in range(80)]), last=True)
    replica.feed(second, lines([long_row(number, 5) for number in range(20)]), last=False)
    readers = [
        threading.Thread(target=lambda name=name: found.update({name: collect(generation, name)}))
        for name in (first, second)
    ]
    for reader in readers:
        reader.start()
    most = 0
    while not found.get(first):
        most = max(most, replica.status().running)
        time.sleep(0.001)
    replica.feed(second, lines([long_row(number, 5) for number in range(20, 30)]), last=True)
    for reader in readers:
        reader.join(timeout=60)
    assert sorted(outcome.index for outcome in found[first]) == list(range(80))
    assert sorted(outcome.index for outcome in found[second]) == sorted([*range(20), *range(10)])
    assert MAX_NUM_SEQS < most <= 1.2 * MAX_NUM_SEQS + 1


def test_progress_is_what_the_engine_computes(generation: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar that is never ready: steps come and go, and the watchdog must not take them for progress."""
    from vllm.v1.structured_output import StructuredOutputManager

    release = threading.Event()
    create = StructuredOutputManager._create_grammar

    def wait(self: Any, request: Any) -> Any:
        assert release.wait(60)
        return create(self, request)

    monkeypatch.setattr(StructuredOutputManager, "_create_grammar", wait)
    loop, session = generation.replica._loop, generation.session()
    stuck = {"prompt": "a", "max_tokens": 4, "structured_outputs": {"regex": "[a-f]{3}"}}
    generation.replica.feed(session, lines([stuck]), last=True)
    wait_for(lambda: generation.engine._flights._by_ticket)
    assert generation.one(long_row(1, tokens=50)).completion_tokens == 50  # others go on
    steps = loop.stats.steps
    wait_for(lambda: (loop.idle_seconds() or 0) > 1.0)
    assert loop.stats.steps - steps < 1000, "an engine that waits does not spin"
    release.set()
    assert [outcome.error_code for outcome in collect(generation, session)] == [None]
    assert loop.idle_seconds() is None
    before = generation.engine.produced()
    assert generation.one(long_row(2, tokens=9)).completion_tokens == 9
    assert generation.engine.produced() >= before + 9


def test_arguments_that_cannot_be_used(lively_model: Path) -> None:
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "no_such_thing": ({"no_such_thing": 1}, "no_such_thing"),
        "parser": ({"reasoning_parser": "deepseek_r1"}, "could not locate think start/end tokens"),
        "no_parser": ({"reasoning_parser": "made_up"}, "'made_up' not found. Available parsers: "),
        "seconds": ({"grammar_seconds": 0}, "grammar_seconds: 0 is not a whole number above 0"),
        "too_long": ({"max_model_len": 99999}, "max_model_len"),
        "wrong_type": ({"max_num_seqs": 0}, "greater than or equal to 1"),
    }
    for name, (arguments, word) in cases.items():
        replica = Replica(name, generation_spec(lively_model, **arguments), exit_when_dead=False)
        with pytest.raises(ConfigError, match=word) as refused:
            replica.ready()
        assert "VLLM_ALLOW" not in str(refused.value)  # vLLM's advice, which makes answers noise


def test_a_model_without_weights_does_not_start(lively_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    shutil.copytree(lively_model, folder)
    (folder / "model.safetensors").unlink()
    replica = Replica("empty", generation_spec(folder), exit_when_dead=False)
    with pytest.raises((EngineStartError, ConfigError), match=r"weights|safetensors"):
        replica.ready()


ONE_LIFE = """
import sys
from pathlib import Path
from dray.engine.replica import Replica
from tests.support.engines import Runner, generation_spec
replica = Replica("mortal", generation_spec(Path(sys.argv[1])))
replica.ready()
body = {"prompt": "help", "max_tokens": 2, "logprobs": 1, "temperature": 1.0, "ignore_eos": True}
assert Runner(replica).one(body).completion_tokens == 2
print("answered", flush=True)
from vllm.v1.engine.llm_engine import LLMEngine
def broken(self):
    raise RuntimeError("a kernel failed")
LLMEngine.step = broken
Runner(replica).session()
replica.feed("last", [b'{"i":0,"c":"a","u":"/v1/completions","b":{"prompt":"help"}}'], last=True)
list(replica.results("last", 1))
print("survived", flush=True)
"""


@pytest.mark.heavy
def test_no_compiler_is_needed_and_a_dead_engine_ends_the_process(lively_model: Path, tmp_path: Path) -> None:
    """Sampling and logprobs without g++; then a step fails, and the process is gone at once."""
    tools = tmp_path / "bin"
    tools.mkdir()
    lscpu = shutil.which("lscpu")  # vLLM asks it for the cores
    assert lscpu is not None
    (tools / "lscpu").symlink_to(lscpu)
    run = subprocess.run(
        [sys.executable, "-c", ONE_LIFE, str(lively_model)],
        env=os.environ | {"PATH": str(tools), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == ENGINE_DEAD_EXIT, run.stderr[-2000:]
    assert "answered" in run.stdout
    assert "survived" not in run.stdout
    assert "engine dead (EngineDeadError)" in run.stderr


def test_without_a_model_name_any_name_will_do(generation: Runner) -> None:
    from dray.engine.vllm_adapter.fields import refuse_unusable

    refuse_unusable({"model": "whatever", "prompt": "a"}, None)
    spec = EngineSpec(name="vllm", model="m", kind=Kind.CHAT)
    assert spec.model_name is None
