"""``kill -9`` of the whole process group at random moments, resumed each time by the same command."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dray.engine.admission import ADMISSION_FACTOR
from dray.shard.pump import FEED_AHEAD, FEED_ROWS, MICRO_BATCH_ROWS
from dray.store import open_store
from tests.support.command import ROOT, Command, run_arguments, write_requests
from tests.support.postgres import PostgresServer
from tests.support.stores import indexes_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

MODEL = ROOT / "examples/tickets/model"
TICKETS = ROOT / "examples/tickets/requests.jsonl"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One job, and how to run it."""

    inputs: Path
    rows: int
    replicas: int
    max_num_seqs: int
    engine: str = "simulated"
    model: str = "simulated"
    settings: tuple[str, ...] = ()

    def command(self, folder: Path, output: Path, store: str = "", trace: Path | None = None) -> Command:
        settings = (f"max_num_seqs={self.max_num_seqs}", *self.settings)
        arguments = run_arguments(
            self.inputs,
            output,
            *("--replicas", str(self.replicas)),
            engine=self.engine,
            model=self.model,
            settings=settings,
            store=store,
        )
        environment = {"DRAY_TRACE_DIR": str(trace)} if trace else {}
        return Command(arguments=arguments, folder=folder, environment=environment)

    @property
    def in_flight(self) -> int:
        """Rows of one shard that may be admitted and not committed, from the constants of the code.

        What was fed ahead and has not come back (the engine's 1.2 x max_num_seqs and what is finished are
        among it), and the one micro-batch whose commit is under way.
        """
        engine = int(ADMISSION_FACTOR * self.max_num_seqs) + 1
        fed_ahead = int(FEED_AHEAD * self.max_num_seqs) - 1 + min(FEED_ROWS, self.max_num_seqs)
        return fed_ahead + min(MICRO_BATCH_ROWS - 1 + engine, fed_ahead)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, chaos_rounds: int) -> Workload:
    """Two replicas with two shards each at a time, 80 rows/s: for two kills, about 14 s of inference."""
    rows = 660 + 220 * chaos_rounds
    inputs = write_requests(tmp_path_factory.mktemp("input") / "in.jsonl", rows)
    settings = ("seconds_per_token=0.05",)
    return Workload(inputs=inputs, rows=rows, replicas=2, max_num_seqs=16, settings=settings)


@pytest.fixture(scope="module")
def undisturbed(simulated: Workload, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Output and errors of a run that nothing happens to: on threads, which take seconds and not a minute."""
    folder = tmp_path_factory.mktemp("undisturbed")
    given = {"input": str(simulated.inputs), "output": str(folder / "out"), "lost": []}
    given["store_url"] = f"sqlite:///{folder / 'jobs.db'}"
    (folder / "job.json").write_text(json.dumps(given))
    command = [sys.executable, "-m", "tests.chaos.thread_job", str(folder / "job.json")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return _outputs(folder / "out")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.heavy(one_of=3)),
        pytest.param("postgresql", marks=pytest.mark.long),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create_database())


def test_nothing_is_lost_doubled_or_needlessly_done_again(
    simulated: Workload,
    undisturbed: tuple[bytes, bytes],
    store: str,
    tmp_path: Path,
    rng: random.Random,
    chaos_rounds: int,
) -> None:
    Killing(simulated, store, tmp_path, rng).through(chaos_rounds, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("core", ["inside", "apart"])
def test_the_same_with_vllm(tmp_path: Path, rng: random.Random, core: str) -> None:
    pytest.importorskip("vllm")
    if not (MODEL / "model.safetensors").is_file():
        pytest.skip("no trained model: examples/tickets/model")
    rows = TICKETS.read_bytes().count(b"\n")
    workload = Workload(
        inputs=TICKETS,
        rows=rows,
        replicas=1,
        max_num_seqs=16,
        engine="vllm",
        model=str(MODEL),
        settings=(f"engine_core={core}",),
    )
    expected = _run_in_peace(workload, tmp_path / "undisturbed")
    Killing(workload, f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, rng).through(5, expected)


class Killing:
    """One job that is killed, resumed and looked at, until it is done."""

    def __init__(self, workload: Workload, store: str, folder: Path, rng: random.Random) -> None:
        self._workload = workload
        self._store = store
        self._folder = folder
        self._output = folder / "out"
        self._rng = rng
        self._admitted: Counter[int] = Counter()
        self._known: frozenset[int] = frozenset()  # rows that were committed at the last look
        self._before_last = self._known

    def through(self, rounds: int, expected: tuple[bytes, bytes]) -> None:
        """Kill the run ``rounds`` times, let it end, and compare."""
        kills = 0
        for number in range(rounds):
            if not self._round(number, rounds):
                break
            kills += 1
        command = self._start(rounds)
        ended = command.wait(400)
        assert ended.code == 0, ended.stderr
        self._look(rounds)
        command.assert_nothing_left()
        assert kills == rounds, f"the job was done after {kills} kills"
        assert ended.json["counts"]["done"] == self._workload.rows
        assert ended.json["counts"]["skipped"] >= len(self._before_last)
        assert (self._output / "output.jsonl").read_bytes() == expected[0]
        assert (self._output / "errors.jsonl").read_bytes() == expected[1]
        with open_store(self._store, create=False) as store:
            assert store.verify_counts("job").done == self._workload.rows  # and each custom_id stands once
        again = sum(self._admitted.values()) - self._workload.rows
        print(f"{rounds} kills: {again} rows computed again, {again / rounds:.1f} a kill")

    def _round(self, number: int, rounds: int) -> bool:
        """One run that is killed; False when it was done before."""
        command = self._start(number)
        moment, describe = self._moment(number, rounds)
        while command.process.poll() is None and not moment():
            time.sleep(0.02)
        code = command.process.poll()
        command.kill9()
        if code is not None:
            assert code == 0, command.stderr()[-3000:]
            return False
        command.assert_nothing_left()
        self._look(number)
        print(f"round {number}: killed {describe}, {len(self._known)} rows committed")
        return True

    def _start(self, number: int) -> Command:
        self._trace(number).mkdir(parents=True, exist_ok=True)
        return self._workload.command(
            self._folder / f"round-{number}", self._output, self._store, self._trace(number)
        )

    def _trace(self, number: int) -> Path:
        return self._folder / "traces" / str(number)

    def _moment(self, number: int, rounds: int) -> tuple[Callable[[], bool], str]:
        """When to kill: mostly while rows run, but also on the way there."""
        if number and self._rng.random() < 0.2:
            after = time.monotonic() + self._rng.uniform(0.5, 20)
            return lambda: time.monotonic() > after, "at a random time after its start"
        share = (self._workload.rows - len(self._known)) // (rounds - number + 1)
        more = self._rng.randrange(1, max(2, share))
        goal = len(self._known) + more
        pause = self._rng.uniform(0, 0.5)
        reached: list[float] = []

        def moment() -> bool:
            if not reached:
                if len(self._committed()) >= goal:
                    reached.append(time.monotonic() + pause)
                else:
                    time.sleep(0.25)  # readers hold up SQLite's writers
                return False
            return time.monotonic() > reached[0]

        return moment, f"{more} rows and {pause:.2f} s on"

    def _shards(self) -> list[list[int]]:
        with open_store(self._store, create=False) as store:
            return [indexes_of(shard) for shard in store.shards("job")]

    def _committed(self) -> frozenset[int]:
        from dray.errors import DrayError

        try:
            with open_store(self._store, create=False) as store:
                return frozenset(store.done_indexes("job", range(self._workload.rows)))
        except DrayError:
            return frozenset()  # there is no job yet

    def _look(self, number: int) -> None:
        """I1, I5: what was committed stays and is not computed again; what was lost was in flight."""
        admitted = _admitted(self._trace(number))
        self._before_last = self._known
        assert not admitted.keys() & self._known, "finished rows were computed again"
        assert not [row for row, times in admitted.items() if times > 1], "a row ran twice in one run"
        self._admitted += admitted
        committed = self._committed()
        assert self._known <= committed, "an acknowledged row vanished"
        assert committed - self._known <= admitted.keys()
        lost = admitted.keys() - committed
        for indexes in self._shards() if lost else ():
            assert len(lost.intersection(indexes)) <= self._workload.in_flight, (
                "more was lost than was in flight"
            )
        self._known = committed


def _admitted(trace: Path) -> Counter[int]:
    """How often each row entered an engine."""
    found: Counter[int] = Counter()
    for file in trace.rglob("*.trace"):
        for line in file.read_text().splitlines():
            event, index = line.split()
            assert event == "admit"
            found[int(index)] += 1
    return found


def _run_in_peace(workload: Workload, folder: Path) -> tuple[bytes, bytes]:
    command = workload.command(folder / "log", folder / "out")
    ended = command.wait(400)
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"]["done"] == workload.rows
    command.assert_nothing_left()
    return _outputs(folder / "out")


def _outputs(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "output.jsonl").read_bytes(), (folder / "errors.jsonl").read_bytes()
