"""Jobs that grow, shrink, go on without what does not come, and heed a deadline and a budget."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dray.account import Span
from dray.cluster.capacity import Capacity, Room
from dray.driver.capacity import policy as capacity_policy
from dray.driver.capacity import purse, scaling
from dray.driver.capacity.market import MarketChoice
from dray.driver.capacity.purse import Purse
from dray.driver.capacity.scaling import Scaling
from dray.driver.capacity.work_left import Work
from dray.driver.events import (
    CapacityDecided,
    CapacityMissing,
    Event,
    NodeLeft,
    Outlook,
    ReplicaReady,
    Warned,
)
from dray.driver.intervals import Intervals
from dray.driver.replicas import readiness
from dray.driver.whole_job import run_job
from dray.errors import ConfigError, JobPausedError
from dray.job.ending.capacity_notes import decisions_of
from dray.job.ending.result import JobResult
from dray.job.open_job import OpenJob
from dray.job.options.replica_range import ReplicaRange, read_range
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.requests.model import Outcome
from dray.requests.sources import source_of
from dray.shard.backoff import NO_WAIT_VARIABLE
from dray.store import JobState, ReplicaState, ShardState, Store, open_store
from tests.support.lanes import parts_on
from tests.support.thread_fleet import Script, ThreadFleet
from tests.support.waiting import until
from tests.unit.driver.scripted import Heard

pytestmark = pytest.mark.unit

QUICK = Intervals(
    step=0.02, status=0.02, stop_signals=0.1, shards=0.05, relaunch=0.01,
    scale=0.05, grow=0.05, shrink=0.1, missing=0.3,
)  # fmt: skip
ROWS = 60
TOKEN = 0.005
_LONG = 60.0  # seconds, for what a busy machine does in the end


class Elastic:
    """Jobs of the simulated engine on replicas in threads. Rows take 0.05 s."""

    def __init__(self, folder: Path, make: Callable[..., JobSettings]) -> None:
        self.heard = Heard()
        self._path = folder / "rows.jsonl"
        self._make = make

    def run(self, fleet: ThreadFleet, *, last: int = 10, rows: int = ROWS, **options: Any) -> JobResult:
        """Run one; its last row has so many tokens: the tail that one replica works at alone."""
        self._write_input(rows, last)
        request = JobRequest.of(input=str(self._path), model="m", output="o", **options)
        limits = read_range(request.engine.replicas)
        settings = self._make(
            source=source_of([str(self._path)]),
            shard_rows=5,
            replicas=None if limits is None else limits.least,
            most_replicas=None if limits is None else limits.most,
            job_id="job",
            engine_arguments={"seconds_per_token": TOKEN, "max_num_seqs": 2},
            request=request,
        )
        self.url = settings.store_url
        return run_job(settings, parts_on(fleet, [self.heard], QUICK))

    def _write_input(self, rows: int, last: int) -> None:
        with self._path.open("w") as file:
            for number in range(rows):
                tokens = last if number == rows - 1 else 10
                body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": tokens}
                row = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions"}
                file.write(json.dumps({**row, "body": body}) + "\n")

    def decided(self) -> list[tuple[int, int]]:
        return [(one.before, one.replicas) for one in self.heard.events if isinstance(one, CapacityDecided)]


class Held:
    """Answers come slowly until the driver has said so ``times``, however busy the machine is."""

    def __init__(self, heard: Heard, kind: type[Event], times: int = 1) -> None:
        self._heard = heard
        self._kind = kind
        self._times = times

    def script(self, lose: Callable[[int, int], bool] = lambda replica, batch: False) -> Script:
        """For a fleet; then it loses replicas."""
        return Script(lose=lambda *which: self.wait() and lose(*which), flush=0.01)

    def wait(self, seconds: float = 1.0) -> bool:
        """Whether the driver has said so by then."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if sum(isinstance(one, self._kind) for one in self._heard.events) >= self._times:
                return True
            time.sleep(0.02)
        return False


def rented(nodes: list[str], script: Script | None = None) -> ThreadFleet:
    """A fleet on machines that can be given back."""
    fleet = ThreadFleet(nodes, script)
    fleet.info = replace(fleet.info, own=False)
    return fleet


@pytest.fixture
def elastic(
    tmp_path: Path, make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> Elastic:
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    monkeypatch.setattr(capacity_policy, "_START_SHARE", 1e9)  # on a busy machine a start may take as
    monkeypatch.setattr(capacity_policy, "_WORTH", 0.0)  # long as the job
    return Elastic(tmp_path, make_settings)


@pytest.mark.heavy(one_of=3)
def test_a_job_grows_loses_one_and_shrinks(elastic: Elastic) -> None:
    """The second replica is lost once all three are ready, and the last row lasts until one is left."""
    three = Held(elastic.heard, ReplicaReady, times=3)
    lost: list[int] = []

    def lose(replica: int, batch: int) -> bool:
        if replica != 1 or lost or not three.wait(_LONG):
            return False
        lost.append(replica)
        return True

    def hold(batch: Sequence[Outcome]) -> None:
        if any(one.custom_id == str(ROWS - 1) for one in batch):
            until(lambda: 1 in [after for _, after in elastic.decided()], seconds=_LONG)

    slow = three.script()
    script = replace(slow, lose=lambda *which: lose(*which) or slow.lose(*which), hold=hold)
    fleet = rented(["a", "b", "c"], script)
    result = elastic.run(fleet, replicas="1:3")
    assert result.state == JobState.COMPLETED
    decided = elastic.decided()
    assert decided[0] == (1, 3)
    assert decided[-1][1] == 1
    assert len(fleet.deaths) == 0 and len({one.name for one in fleet.replicas}) == 4
    with open_store(elastic.url, create=False) as store:
        rows = store.replicas("job")
        notes = decisions_of(store.get_job("job"))
    assert {row.lane for row in rows if row.state is ReplicaState.RETIRED} == {0, 1, 2} - {
        row.lane for row in rows if row.state is ReplicaState.READY
    }
    assert "shards wait" in notes[0]["line"] and "no shard waits" in notes[-1]["line"]
    worked = {row.lane for row in rows if row.node is not None}
    assert worked == {0, 1, 2}


class Crowded(ThreadFleet):
    """Replicas after the first find no place."""

    def launch(self, *args: Any, **options: Any) -> Any:
        made = super().launch(*args, **options)
        if len(self.replicas) > 1:
            made.node = lambda: None  # type: ignore[method-assign]
            made.began = lambda: None  # type: ignore[method-assign]
        return made

    def capacity(self) -> Capacity:
        return Capacity(nodes=self.info.nodes, rooms=(Room(cpus=64, gpus=0, free_cpus=0, free_gpus=0),))


@pytest.mark.heavy(one_of=3)
def test_a_job_goes_on_without_what_does_not_come(elastic: Elastic) -> None:
    fleet = Crowded(["a"], Held(elastic.heard, CapacityMissing, times=2).script())
    result = elastic.run(fleet, replicas="1:3")
    assert result.state == JobState.COMPLETED
    told = [one for one in elastic.heard.events if isinstance(one, CapacityMissing)]
    given_up = next(one for one in told if one.replicas == 1)  # the two may be given up one by one
    assert given_up.before in (2, 3)
    assert "found no place within 0 s; the job goes on with 1, and asks again later" in given_up.text


@pytest.mark.parametrize(
    ("markets", "waiting", "given_up", "most"),
    [(None, 1, [1], 1), (MarketChoice(), 1, [], 3), (MarketChoice(), 0, [1], 3)],
)
def test_replicas_that_wait_for_spot_are_not_given_up_while_shards_wait(
    monkeypatch: pytest.MonkeyPatch,
    markets: MarketChoice | None,
    waiting: int,
    given_up: list[int],
    most: int,
) -> None:
    """Or no machine on demand could make up for them, and the job would miss its deadline."""
    monkeypatch.setattr(scaling, "work_of", lambda *_: Work(left=1, waiting=waiting, running=1))
    resized, asked = list[int](), list[int]()

    def resize(lanes: int) -> None:
        pool.lanes = lanes
        resized.append(lanes)

    pool: Any = SimpleNamespace(
        lanes=3, ready=lambda: 1, idle=lambda _: [], unused=lambda _: [], nodes=lambda: {"a"},
        working_on=lambda: ["a"], starts=list, waiting=lambda: None, unplaced=lambda _: 2,
        resize=resize,
    )  # fmt: skip
    purse: Any = SimpleNamespace(
        idle=False, hourly=lambda _, spot: 0.0, note=lambda *_: None,
        look=lambda *_, most, **others: asked.append(most),
    )  # fmt: skip
    anything: Any = SimpleNamespace(
        job_id="job", info=SimpleNamespace(own=False), capacity=lambda: None, now=float,
        shards=lambda _: [],
    )  # fmt: skip
    Scaling(
        anything, pool, anything, lambda _: None, lambda _: None,
        limits=ReplicaRange(1, 3), purse=purse, intervals=Intervals(), markets=markets,
    ).look(anything)  # fmt: skip
    assert (resized, asked) == (given_up, [most])


@pytest.mark.heavy(one_of=3)
def test_a_deadline_asks_for_replicas_and_says_what_can_be_met(elastic: Elastic) -> None:
    fleet = ThreadFleet(["a", "b"], Held(elastic.heard, CapacityDecided).script())
    result = elastic.run(fleet, deadline="1s", replicas="1:2")
    assert result.state == JobState.COMPLETED
    [outlook, *_] = [one for one in elastic.heard.events if isinstance(one, Outlook)]
    assert "too long for the deadline" in outlook.text
    assert (1, 2) in elastic.decided()


@pytest.mark.heavy(one_of=3)
def test_a_budget_ends_in_a_pause_and_counts_what_earlier_runs_spent(elastic: Elastic) -> None:
    paid: dict[str, Any] = {"price": 3600.0, "replicas": 1}  # a dollar a second
    with pytest.raises(JobPausedError, match=r"\$0\.20 is spent.*`dray resume .* a higher budget goes on"):
        elastic.run(ThreadFleet(["a"]), budget=0.2, **paid)
    with pytest.raises(JobPausedError, match=r"the budget of \$0\.25 is spent"):
        elastic.run(ThreadFleet(["a"]), budget=0.25, **paid)
    fleet = ThreadFleet(["a"], Held(elastic.heard, Outlook).script())
    result = elastic.run(fleet, budget=1e9, **paid)  # however slowly it begins
    assert result.state == JobState.COMPLETED
    assert any("within the budget" in one.text for one in elastic.heard.events if isinstance(one, Outlook))


class Slow(ThreadFleet):
    """Replicas have their node, and build their engines for as long as one likes."""

    def launch(self, *args: Any, **options: Any) -> Any:
        made = super().launch(*args, **options)
        made.began = lambda: None  # type: ignore[method-assign]
        return made


def test_a_budget_counts_machines_on_which_engines_are_built(
    elastic: Elastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "START_SECONDS", 3.0)
    with pytest.raises(JobPausedError, match=r"\$0\.20 is spent"):
        elastic.run(Slow(["a"]), budget=0.2, price=3600.0, replicas=1)
    with open_store(elastic.url, create=False) as store:
        assert sum(span.micros for span in store.spans("job")) > 0


@pytest.mark.parametrize("price", [3600.0, None])
def test_a_budget_counts_earlier_runs_whose_nodes_had_no_price(elastic: Elastic, price: float | None) -> None:
    """By the price that is given now; where none is, the driver says what it does not count."""
    told: list[Event] = []
    span = Span(
        epoch=1, node="a", host="h", place=0, places=1, replica="replica-0", phase="busy", started=0.0,
        micros=2_000_000,
    )  # fmt: skip
    request = JobRequest.of(input="i", model="m", output="o", budget=10.0, price=price)
    job: Any = SimpleNamespace(
        settings=SimpleNamespace(request=request), lease=SimpleNamespace(epoch=2), job_id="job"
    )
    known = SimpleNamespace(job_id="job", created_at=0.0, info={})
    store: Any = SimpleNamespace(get_job=lambda _: known, spans=lambda _: [span])
    ledger: Any = SimpleNamespace(priced=True, dollars=lambda: 0.0, unpriced=lambda _: set())
    purse = Purse(job, ledger, told.append)
    purse._begin(store)
    assert purse._spent([]) == (0.0 if price is None else pytest.approx(2.0))
    assert [one.text for one in told if "leaves out earlier runs" in (one.text or "")] == [
        one.text for one in told
    ]
    assert bool(told) == (price is None)


def test_a_budget_keeps_no_finished_job_from_its_files(
    elastic: Elastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is crossed in the step in which the last shard ended."""

    def spent(**_: Any) -> bool:
        with open_store(elastic.url, create=False) as store:
            return all(shard.state is ShardState.DONE for shard in store.shards("job"))

    monkeypatch.setattr(purse, "is_spent", spent)
    monkeypatch.setattr(sys.modules[__name__], "QUICK", replace(QUICK, scale=0.0))
    assert elastic.run(ThreadFleet(["a"]), budget=100.0, price=1.0).state == JobState.COMPLETED


def test_an_outlook_that_was_far_off_is_corrected() -> None:
    """The first seconds of a run tell little, and the report keeps what was said of them."""
    told: list[Event] = []
    job: Any = SimpleNamespace(
        settings=SimpleNamespace(request=JobRequest.of("i", "m", "o", budget=100.0)),
        job_id="job",
        lease=SimpleNamespace(epoch=1),
    )
    known = SimpleNamespace(job_id="job", created_at=0.0, info={})
    store: Any = SimpleNamespace(
        get_job=lambda _: known, spans=lambda _: [], now=float, merge_job_info=lambda *_: None
    )
    ledger: Any = SimpleNamespace(priced=True)
    purse = Purse(job, ledger, told.append)

    def look(elapsed: float, left: float) -> int:
        load: Any = SimpleNamespace(seconds_left=left)
        now: Any = SimpleNamespace(
            deadline=None, elapsed=elapsed, work=left, on_demand_price=20.0, budget=100.0, spent=1.0
        )
        purse._look_ahead(store, load, now)
        return len(told)

    assert look(1000, 780) == 1
    assert look(1010, 80) == 1  # it may swing back
    assert look(1040, 740) == 1  # as it was said
    assert look(1041, 70) == 2
    assert told[-1].text == "the rest takes 1 min 10 s as things are, and costs $0.39, within the budget"
    assert look(1075, 600) == 2  # each correction waits twice as long
    assert look(1110, 600) == 3
    assert look(1300, 430) == 3
    assert look(1705, 20) == 3  # a matter of seconds


def test_time_without_the_store_is_counted_once() -> None:
    """The account has it; half an hour of all nodes more would end a job that has the money to go on."""
    job: Any = SimpleNamespace(settings=SimpleNamespace(request=JobRequest.of("i", "m", "o", budget=100.0)))
    ledger: Any = SimpleNamespace(priced=True)
    counted = Purse(job, ledger, lambda _: None)
    counted._looked = time.monotonic() - 1800
    assert counted._step() == 60.0
    assert counted._step() < 1.0


def test_a_budget_without_a_price_is_refused(elastic: Elastic) -> None:
    with pytest.raises(ConfigError, match="--price"):
        elastic.run(ThreadFleet(["a"]), budget=1.0, replicas=1)


def test_without_limits_nothing_is_looked_at(elastic: Elastic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with one number of replicas, no deadline and no budget is as it ever was."""
    looks: list[object] = []
    monkeypatch.setattr(scaling, "work_of", lambda *args: looks.append(args))
    monkeypatch.setattr(Purse, "_begin", lambda *args: looks.append(args))
    assert elastic.run(ThreadFleet(["a", "b"]), replicas=2).state == JobState.COMPLETED
    assert elastic.run(ThreadFleet(["a"])).state == JobState.COMPLETED
    assert not looks and not elastic.decided()


def test_a_node_that_leaves_such_a_job_is_paid_no_longer() -> None:
    """The node's replica left after a notice. It was not lost, so no loss says that the node is gone."""
    told: list[Event] = []
    asked: list[int] = []
    met: list[Any] = []
    there, used = {"a", "b"}, {"a", "b"}

    def capacity() -> Any:
        asked.append(1)
        return SimpleNamespace(nodes=tuple(SimpleNamespace(node_id=name, spot=True) for name in there))

    parts: Any = {
        "pool": SimpleNamespace(nodes=lambda: set(used)),
        "fleet": SimpleNamespace(capacity=capacity),
        "purse": SimpleNamespace(idle=True, meet=met.append),
    }
    job, store = cast("OpenJob", None), cast("Store", None)
    limits = ReplicaRange(2, 2)
    look = Scaling(
        job,
        emit=told.append,
        resized=lambda _: None,
        limits=limits,
        intervals=replace(QUICK, account=0.0),
        **parts,
    ).look
    look(store)
    used.remove("a")
    look(store)
    assert told == []
    there.remove("a")
    look(store)
    assert told == [NodeLeft(node="a")]
    count = len(asked)
    look(store)
    assert len(asked) == count == len(met), "a cluster that does not change is not asked"


class Late(ThreadFleet):
    """Its nodes joined after the run began, with prices of the catalogue."""

    def capacity(self) -> Capacity:
        found = super().capacity()
        assert found is not None
        return replace(found, nodes=tuple(replace(node, instance="g5.xlarge") for node in found.nodes))


@pytest.mark.heavy(one_of=3)
def test_nodes_that_join_later_have_their_prices_in_the_account(elastic: Elastic) -> None:
    """Also where nothing else is to be heeded: no deadline, no budget, one number of replicas."""
    fleet = Late(["a", "b"])
    fleet.info = replace(fleet.info, nodes=())
    assert elastic.run(fleet, rows=200, replicas=2).state == JobState.COMPLETED
    with open_store(elastic.url, create=False) as store:
        prices = {span.node: span.price for span in store.spans("job")}
    assert prices.keys() == {"a", "b"}
    assert None not in prices.values()


def test_a_machine_of_our_own_is_not_given_back(elastic: Elastic) -> None:
    fleet = ThreadFleet(["a", "b"], Held(elastic.heard, ReplicaReady, times=2).script())
    result = elastic.run(fleet, last=200, replicas="1:2")
    assert result.state == JobState.COMPLETED
    assert elastic.decided() == [(1, 2)]


class Unpriced(ThreadFleet):
    """Of its two nodes, the catalogue has the price of the first."""

    def capacity(self) -> Capacity:
        first, second = self.info.nodes
        return Capacity(nodes=(replace(first, instance="g5.xlarge"), second), rooms=())


def test_nodes_without_a_price_are_named(elastic: Elastic) -> None:
    fleet = Unpriced(["a", "b"])
    fleet.info = replace(fleet.info, nodes=fleet.capacity().nodes)
    result = elastic.run(fleet, budget=10.0, replicas=2)
    assert result.state == JobState.COMPLETED
    told = [one.text for one in elastic.heard.events if isinstance(one, Warned)]
    assert told == [
        "the budget does not count b: dray knows no price for it; --price gives one for all nodes"
    ]


# -- what a user asks for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept", "limits"),
    [
        (3, 3, ReplicaRange(3, 3)),
        ("3", 3, ReplicaRange(3, 3)),
        ("2:2", 2, ReplicaRange(2, 2)),
        ("1:8", "1:8", ReplicaRange(1, 8)),
        (" 01 : 8 ", "1:8", ReplicaRange(1, 8)),
        (None, None, None),
    ],
)
def test_replicas_as_they_are_given(given: Any, kept: Any, limits: ReplicaRange | None) -> None:
    request = JobRequest.of(input="i", model="m", output="o", replicas=given)
    assert request.engine.replicas == kept
    assert read_range(given) == limits
    assert JobRequest.read(request.recipe() | {"plan": None}).engine.replicas == kept


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"replicas": "3:2"}, r"engine|replicas: MIN \(3\) is greater than MAX \(2\)"),
        ({"replicas": "0:2"}, "greater than or equal to 1"),
        ({"replicas": 0}, "replicas 0: Input should be greater than or equal to 1: .* such as 1:8"),
        ({"replicas": "many"}, "a number of replicas: write how many, such as 4, or .* 1:8"),
        ({"deadline": "soon"}, "deadline: 'soon' is not a time"),
        ({"budget": 0}, "budget 0: .*greater than 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        JobRequest.of(input="i", model="m", output="o", **options)
