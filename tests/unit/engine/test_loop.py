"""The step loop: each row comes out once, whatever sessions do; nobody waits for ever."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.engine.loop import StepLoop
from dray.engine.loop_stats import LoopStats
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.replica import Replica
from dray.errors import (
    ConfigError,
    EngineDeadError,
    EngineStartError,
    LeaseLapsedError,
    ReplicaLeftError,
    RequestRefused,
)
from dray.failures.signs import facts_of
from dray.kinds import Kind
from dray.requests.model import Outcome, Request
from dray.requests.spool.spool import encode
from tests.support.waiting import until

pytestmark = pytest.mark.unit


class RandomEngine:
    """Finishes a random choice of its requests at each step; refuses and breaks on demand."""

    def __init__(self, seed: int = 0, max_num_seqs: int = 4, break_after: int | None = None) -> None:
        self.info = EngineInfo(
            engine="random", version="0", model="m", max_num_seqs=max_num_seqs, max_model_len=9, timeline={}
        )
        self.most = 0
        self.aborted: list[int] = []
        self.closed = False
        self.woken = 0
        self.dead = False
        self.running: dict[int, Request] = {}
        self._random = random.Random(seed)
        self._steps_left = break_after

    def submit(self, key: int, request: Request) -> None:
        if request.body.get("refuse"):
            raise RequestRefused("invalid_request", "as asked")
        assert key not in self.running
        self.running[key] = request
        self.most = max(self.most, len(self.running))

    def step(self) -> list[tuple[int, Outcome]]:
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                raise RuntimeError("broken")
        keys = [key for key in self.running if self._random.random() < 0.5]
        return [
            (key, Outcome(index=done.index, custom_id=done.custom_id, response=b"{}"))
            for key in keys
            for done in [self.running.pop(key)]
        ]

    def tuned(self) -> None:
        """It has nothing to find out."""

    def wake(self) -> None:
        self.woken += 1

    def check(self) -> None:
        if self.dead:
            raise EngineDeadError("gone")

    def produced(self) -> int:
        return self._random.getrandbits(60)

    def abort(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.aborted.append(key)
            self.running.pop(key, None)

    def close(self) -> None:
        self.closed = True


def started(engine: RandomEngine, dead: list[BaseException] | None = None, silence: float = 60.0) -> StepLoop:
    loop = StepLoop(lambda: engine, on_dead=(dead if dead is not None else []).append, silence=silence)
    loop.start()
    assert loop.started.wait(5)
    return loop


def rows(indexes: Iterable[int], **body: Any) -> list[bytes]:
    return [
        encode(Request(index=index, custom_id=f"c{index}", url=Kind.CHAT.url, body=body)) for index in indexes
    ]


def drain(loop: StepLoop, name: str) -> list[int]:
    return [outcome.index for batch in loop.batches(name, rows=3, seconds=0.001) for outcome in batch]


SESSIONS = st.lists(
    st.tuples(
        st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=4),  # feeds of rows, True: refused
        st.booleans(),  # aborted half way
        st.booleans(),  # feeds arrive in reverse
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(sessions=SESSIONS, seed=st.integers(0, 99))
def test_each_row_comes_out_once(sessions: list[Any], seed: int) -> None:
    engine = RandomEngine(seed)
    loop = started(engine)
    found: dict[str, list[int]] = {}
    threads = []
    for number, (feeds, aborts, reverse) in enumerate(sessions):
        name = f"s{number}"
        calls: list[tuple[int, list[bytes], bool]] = []
        index = 0
        for place, feed in enumerate(feeds):
            lines: list[bytes] = []
            for refuse in feed:
                index += 1
                lines += rows([index], refuse=refuse)
            calls.append((place, lines, place == len(feeds) - 1))

        def act(
            name: str = name, calls: list[Any] = calls, aborts: bool = aborts, back: bool = reverse
        ) -> None:
            for place, lines, last in calls[::-1] if back else calls:
                loop.feed(name, lines, last=last, number=place)
            if aborts:
                loop.abort(name)

        def read(name: str = name) -> None:
            found[name] = drain(loop, name)

        threads += [threading.Thread(target=act), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive(), "a reader waits for ever"
    for number, (feeds, aborts, _) in enumerate(sessions):
        expected = list(range(1, sum(map(len, feeds)) + 1))
        seen = sorted(found[f"s{number}"])
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(expected) if aborts else seen == expected
    assert engine.most <= 1.2 * 4 + 1
    end = time.monotonic() + 5
    while loop.load() != (0, 0) or engine.running:
        assert time.monotonic() < end, "something stayed in the engine"
        time.sleep(0.001)
    loop.stop()
    loop.join(5)
    assert engine.closed


def test_a_feed_that_is_overtaken_is_not_lost() -> None:
    loop = started(RandomEngine())
    loop.feed("s", rows([2]), last=True, number=1)
    time.sleep(0.05)
    loop.feed("s", rows([1]), last=False, number=0)
    assert sorted(drain(loop, "s")) == [1, 2]
    loop.stop()


def test_a_dead_engine_ends_every_reader() -> None:
    dead: list[BaseException] = []
    loop = started(RandomEngine(break_after=3), dead)
    loop.feed("s", rows(range(50)), last=True)
    with pytest.raises(EngineDeadError, match="RuntimeError"):
        drain(loop, "s")
    loop.join(5)
    assert [type(error) for error in dead] == [RuntimeError]


def test_a_stopped_loop_and_one_that_never_started_end_every_reader() -> None:
    loop = started(RandomEngine())
    loop.feed("s", [], last=False)
    loop.stop()
    with pytest.raises(EngineDeadError, match="stopped"):
        drain(loop, "s")

    def build() -> Any:
        raise ConfigError("no")

    failing = StepLoop(build, on_dead=lambda error: None)
    failing.start()
    assert failing.started.wait(5)
    assert isinstance(failing.start_error, ConfigError)
    with pytest.raises(EngineDeadError, match="start"):
        drain(failing, "s")


def test_a_start_that_cannot_succeed_any_more_is_not_waited_for() -> None:
    """Such as one that waits for a part on another node which is gone."""
    entered, let_go = threading.Event(), threading.Event()

    def build() -> Any:
        entered.set()
        let_go.wait(5)
        raise RuntimeError("the others went")

    loop = StepLoop(build, on_dead=lambda error: None)
    loop.start()
    assert entered.wait(5)
    loop.fail_start(EngineStartError("a part of it did not start"))
    assert loop.started.is_set()
    with pytest.raises(EngineDeadError, match="start"):
        drain(loop, "s")
    let_go.set()
    loop.join(5)
    assert isinstance(loop.start_error, EngineStartError)  # and not what follows from it


def test_an_aborted_session_stays_ended() -> None:
    loop = started(RandomEngine())
    loop.abort("s")
    loop.feed("s", rows([1]), last=True)
    assert drain(loop, "s") == []
    assert loop.load() == (0, 0)
    loop.stop()


def test_a_session_ends_when_its_reader_elsewhere_says_nothing() -> None:
    loop = started(RandomEngine(), silence=0.3)
    for name in ("dead", "alive", "thawed"):
        loop.feed(name, rows(range(3)), last=False, number=0)
    loop.feed("here", rows(range(3)), last=False)  # of this process: it says nothing, and needs not
    deadline = time.monotonic() + 0.6
    while time.monotonic() < deadline:
        loop.heartbeat("alive")
        loop.heartbeat("never fed")
        loop.end_silent()
        time.sleep(0.01)
    assert loop.sessions == 2
    with pytest.raises(LeaseLapsedError, match="heard nothing"):
        drain(loop, "dead")
    loop.feed("thawed", rows([9]), last=True, number=1)  # it was frozen, and goes on
    with pytest.raises(LeaseLapsedError, match="heard nothing"):
        drain(loop, "thawed")
    loop.feed("alive", [], last=True, number=1)
    loop.feed("here", [], last=True)
    assert sorted(drain(loop, "alive")) == sorted(drain(loop, "here")) == [0, 1, 2]
    assert loop.load() == (0, 0)
    loop.stop()


def test_a_loop_that_stood_still_itself_ends_no_session_for_it() -> None:
    """The machine was stopped: what the shard task said meanwhile is still on its way."""
    loop = started(RandomEngine(), silence=0.3)
    loop.feed("s", rows(range(3)), last=False, number=0)
    time.sleep(0.4)
    loop.end_silent(late=0.4)
    loop.feed("s", [], last=True, number=1)
    assert sorted(drain(loop, "s")) == [0, 1, 2]
    loop.stop()


def test_an_empty_session_ends() -> None:
    loop = started(RandomEngine())
    loop.feed("s", [], last=True)
    assert drain(loop, "s") == []
    loop.stop()


def test_refused_rows_make_room_at_once() -> None:
    loop = started(RandomEngine(max_num_seqs=1))
    loop.feed("s", rows(range(100), refuse=True), last=False)
    loop.feed("s", rows([100]), last=True)
    assert sorted(drain(loop, "s")) == list(range(101))
    assert loop.stats.finished == loop.stats.admitted == 101
    loop.stop()


class Refusing(RandomEngine):
    """Takes some time to refuse a row."""

    def submit(self, key: int, request: Request) -> None:
        time.sleep(0.001)
        super().submit(key, request)


def test_rows_that_are_refused_do_not_keep_the_engine_from_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pump that feeds for each row that comes back: a healthy engine was ended for standing still."""
    monkeypatch.setattr("dray.engine.loop._ADMIT_SECONDS", 0.02)
    loop = started(Refusing(max_num_seqs=64))
    loop.feed("valid", rows([0]), last=True)
    loop.feed("refused", rows(range(1, 200), refuse=True), last=False)
    answered = threading.Event()

    def read() -> None:
        assert drain(loop, "valid") == [0]
        answered.set()

    threading.Thread(target=read, daemon=True).start()
    fed, end = 200, time.monotonic() + 20
    for batch in loop.batches("refused", rows=3, seconds=0.001):
        if answered.is_set():
            break
        assert time.monotonic() < end, "the valid row got no step"
        loop.feed("refused", rows(range(fed, fed + len(batch)), refuse=True), last=False)
        fed += len(batch)
    assert answered.is_set()  # and the refused session did not end before
    loop.stop()


def test_answers_that_no_reader_takes_stop_the_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is slower than the engine, and answers are large: the replica's memory is bounded."""
    monkeypatch.setattr("dray.engine.intake.ANSWER_BYTES", 10)  # of answers with 2 bytes each
    loop = started(RandomEngine(max_num_seqs=4))
    loop.feed("s", rows(range(60)), last=True)
    until(lambda: loop.load()[0] == 0 and loop.stats.finished > 0)
    held = loop.stats.finished
    assert 5 <= held <= 5 + 5  # as many as an engine may hold beyond the limit
    time.sleep(0.05)
    assert (loop.stats.finished, loop.idle_seconds()) == (held, None)
    assert sorted(drain(loop, "s")) == list(range(60))
    loop.stop()


class Hanging(RandomEngine):
    """Never comes to the end of a row that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def submit(self, key: int, request: Request) -> None:
        self.over.wait(30)
        super().submit(key, request)


def test_a_row_whose_reading_never_ends_is_seen_also_alone() -> None:
    engine = Hanging()
    loop = started(engine)
    assert loop.idle_seconds() is None
    loop.feed("s", rows([0]), last=True)
    until(lambda: (loop.idle_seconds() or 0.0) > 0.1)
    engine.over.set()
    assert drain(loop, "s") == [0]
    assert loop.idle_seconds() is None
    loop.stop()


def first_token(stats: LoopStats) -> float | None:
    """As it is now: mypy takes a value that a test has seen for the value for ever."""
    return stats.first_token_at


def test_the_first_token_is_that_of_whichever_row_it_came_to_first() -> None:
    stats = LoopStats()
    answer = Outcome(index=0, custom_id="c", response=b"{}")
    stats.count(answer._replace(response=None, error_code="context_length_exceeded"), 50.0)
    assert first_token(stats) is None
    stats.count(answer._replace(first_token_seconds=0.5, total_seconds=2.0), 100.0)
    assert first_token(stats) == 98.5
    stats.count(answer._replace(first_token_seconds=9.0, total_seconds=9.5), 101.0)
    assert first_token(stats) == 98.5
    stats.count(answer._replace(first_token_seconds=0.5, total_seconds=9.5), 101.0)  # long answer, early row
    assert first_token(stats) == 92.0
    assert stats.finished == 4


def test_an_answer_without_tokens_is_its_own_first_token() -> None:
    stats = LoopStats()
    stats.count(Outcome(index=0, custom_id="c", response=b"{}", total_seconds=3.0), 100.0)
    assert stats.first_token_at == 100.0


def test_a_replica_of_the_simulated_engine_counts_and_traces(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_TRACE_DIR", str(tmp_path))
    before = time.time()
    replica = Replica("r", EngineSpec(name="simulated", model="m", kind=Kind.CHAT), exit_when_dead=False)
    assert replica.ready().engine == "simulated"
    lines = rows(range(10), messages=[{"role": "user", "content": "hello there"}], max_tokens=3)
    replica.feed("s", lines, last=True)
    outcomes = [outcome for batch in replica.results("s", 4, 0.01) for outcome in batch]
    assert sorted(outcome.index for outcome in outcomes) == list(range(10))
    status = replica.status()
    assert (status.running, status.waiting, status.stats.finished) == (0, 0, 10)
    assert status.stats.completion_tokens == 30
    began, ready = status.began, replica._loop.ready_at
    assert status.stats.first_token_at is not None
    assert before <= began <= ready <= status.stats.first_token_at <= time.time()
    (trace,) = tmp_path.iterdir()
    assert sorted(trace.read_text().split()[1::2], key=int) == [str(number) for number in range(10)]
    replica.stop()


def test_an_unknown_engine_is_refused() -> None:
    replica = Replica("r", EngineSpec(name="abacus", model="m", kind=Kind.CHAT), exit_when_dead=False)
    with pytest.raises(ConfigError, match="abacus"):
        replica.ready()


def test_a_drained_loop_finishes_what_it_can_and_hands_the_rest_back() -> None:
    """One session is through, one has rows in the engine, one has rows that were never admitted."""
    spec = EngineSpec(
        name="simulated", model="m", kind=Kind.CHAT, arguments={"max_num_seqs": 4, "seconds_per_token": 0.1}
    )
    replica = Replica("r", spec, exit_when_dead=False)
    replica.ready()
    body = {"messages": [{"role": "user", "content": "x"}]}
    replica.feed("short", rows(range(2), **body, max_tokens=2), last=True)
    replica.feed("long", rows(range(2, 4), **body, max_tokens=600), last=True)
    replica.feed("waiting", rows(range(4, 40), **body, max_tokens=1), last=True)
    time.sleep(0.1)
    began = time.monotonic()
    replica.drain(1.0)
    assert sorted(o.index for batch in replica.results("short", 9, 0.01) for o in batch) == [0, 1]
    for session in ("long", "waiting"):
        with pytest.raises(ReplicaLeftError):
            for batch in replica.results(session, 99, 0.01):
                assert not {o.index for o in batch} & {2, 3}
    assert 0.9 < time.monotonic() - began < 3
    replica.feed("late", rows(range(50, 52), **body), last=True)
    with pytest.raises(ReplicaLeftError):
        next(replica.results("late", 9, 0.01))
    with pytest.raises(ReplicaLeftError):
        replica.check()
    assert replica.status().sessions == 0
    while replica.status().running:
        assert time.monotonic() - began < 5
        time.sleep(0.01)
    replica.stop()


@pytest.mark.parametrize("alone", [True, False])
def test_an_engine_that_stands_still_is_ended_and_says_so(alone: bool) -> None:
    """One that still brings something for other rows is not: a slow row is no fault of the engine's."""
    arguments = {"stall_on": "stuck", "seconds_per_token": 0.02}
    spec = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments=arguments, stall_seconds=0.6)
    replica = Replica("r", spec, exit_when_dead=False)
    replica.ready()
    replica.feed("s", rows(range(1), messages=[{"role": "user", "content": "stuck"}]), last=True)
    began = time.monotonic()
    if not alone:
        replica.feed(
            "o", rows(range(1, 2), messages=[{"role": "user", "content": "x"}], max_tokens=75), last=True
        )
        assert [o.index for batch in replica.results("o", 9, 0.01) for o in batch] == [1]
        assert time.monotonic() - began > 1.4
    with pytest.raises(EngineDeadError, match="stood still") as ended:
        list(replica.results("s", 9, 0.01))
    assert ended.value.stuck
    assert facts_of(pickle.loads(pickle.dumps(ended.value))).stuck  # over Ray too
    replica.stop()
