"""Jobs that grow, shrink, go on without what does not come, and heed a deadline and a budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dray.cluster.base import ClusterInfo, ClusterSettings, Node
from dray.cluster.capacity import Capacity, Room
from dray.driver import growth
from dray.driver.events import CapacityDecided, CapacityMissing, Outlook
from dray.driver.intervals import Intervals
from dray.driver.rented import Offer
from dray.driver.scaling import Limits, limits_of, places
from dray.driver.thread_executor import ThreadExecutor
from dray.driver.whole_job import Parts, run_job
from dray.errors import ConfigError, JobPausedError
from dray.job.capacity_notes import decisions_of
from dray.job.finalising import JobResult
from dray.job.request import JobRequest
from dray.job.settings import JobSettings
from dray.requests.sources import source_of
from dray.shard.backoff import NO_WAIT_VARIABLE
from dray.store import JobState, ReplicaState, open_store
from tests.support.thread_fleet import Script, ThreadCluster, ThreadFleet
from tests.unit.driver.scripted import Heard, cluster

pytestmark = pytest.mark.unit

QUICK = Intervals(
    step=0.02, status=0.02, orders=0.1, shards=0.05, relaunch=0.01,
    scale=0.05, grow=0.05, shrink=0.1, missing=0.3,
)  # fmt: skip
ROWS = 60
TOKEN = 0.005


class Elastic:
    """Jobs of the simulated engine on replicas in threads. Rows take 0.05 s."""

    def __init__(self, folder: Path, make: Callable[..., JobSettings]) -> None:
        self.heard = Heard()
        self._path = folder / "rows.jsonl"
        self._make = make

    def run(self, fleet: ThreadFleet, rental: Any = None, *, last: int = 10, **options: Any) -> JobResult:
        """Run one; its last row has so many tokens: the tail that one replica works at alone."""
        self._write_input(last)
        request = JobRequest.of(input=str(self._path), model="m", output="o", **options)
        settings = self._make(
            source=source_of([str(self._path)]),
            shard_rows=5,
            replicas=request.engine.replicas,
            replica_gpus=request.engine.replica_gpus,
            job_id="job",
            engine_arguments={"seconds_per_token": TOKEN, "max_num_seqs": 2},
            request=request,
        )
        self.url = settings.store_url
        parts = Parts(
            where=ClusterSettings(),
            cluster=ThreadCluster(fleet),
            executor=ThreadExecutor(fleet),
            observers=[self.heard],
            fleet_of=lambda info: fleet,
            rental_of=lambda info: rental,
            intervals=QUICK,
        )
        return run_job(settings, parts)

    def _write_input(self, last: int) -> None:
        with self._path.open("w") as file:
            for number in range(ROWS):
                tokens = last if number == ROWS - 1 else 10
                body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": tokens}
                row = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions"}
                file.write(json.dumps({**row, "body": body}) + "\n")

    def decided(self) -> list[tuple[int, int]]:
        return [(one.before, one.replicas) for one in self.heard.events if isinstance(one, CapacityDecided)]


@pytest.fixture
def elastic(
    tmp_path: Path, make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> Elastic:
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    monkeypatch.setattr(growth, "_STARTS", 0.0)  # on a busy machine a start may take as long as the job
    return Elastic(tmp_path, make_settings)


def test_a_job_grows_loses_one_and_shrinks(elastic: Elastic) -> None:
    lose = Script(lose=lambda replica, batch: (replica, batch) == (1, 2), flush=0.01)
    fleet = ThreadFleet(["a", "b", "c"], lose)
    result = elastic.run(fleet, last=800, engine={"replicas": 1, "max_replicas": 3})
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
        return Capacity(nodes=(), rooms=(Room(cpus=64, gpus=0, free_cpus=0, free_gpus=0),))


def test_a_job_goes_on_without_what_does_not_come(elastic: Elastic) -> None:
    result = elastic.run(Crowded(["a"]), engine={"replicas": 1, "max_replicas": 3})
    assert result.state == JobState.COMPLETED
    [missing, *_] = [one for one in elastic.heard.events if isinstance(one, CapacityMissing)]
    assert (missing.missing, missing.replicas) == (2, 1)
    assert "2 replicas found no place within 0 s; the job goes on with 1" in missing.text


def test_a_deadline_asks_for_replicas_and_says_what_can_be_met(elastic: Elastic) -> None:
    result = elastic.run(ThreadFleet(["a", "b"]), deadline="1s", engine={"replicas": 1, "max_replicas": 2})
    assert result.state == JobState.COMPLETED
    [outlook, *_] = [one for one in elastic.heard.events if isinstance(one, Outlook)]
    assert "too long for the deadline" in outlook.text
    assert (1, 2) in elastic.decided()


def test_a_budget_ends_in_a_pause_and_counts_what_earlier_runs_spent(elastic: Elastic) -> None:
    price = 3600.0  # a dollar a second
    with pytest.raises(JobPausedError, match=r"the budget of \$1\.00 is spent.* higher --budget"):
        elastic.run(ThreadFleet(["a"]), budget=1.0, price=price, engine={"replicas": 1})
    with pytest.raises(JobPausedError, match=r"the budget of \$1\.10 is spent"):
        elastic.run(ThreadFleet(["a"]), budget=1.1, price=price, engine={"replicas": 1})
    result = elastic.run(ThreadFleet(["a"]), budget=100.0, price=price, engine={"replicas": 1})
    assert result.state == JobState.COMPLETED
    told = [one.text for one in elastic.heard.events if isinstance(one, Outlook)]
    assert "over the budget" in told[0] and "within the budget" in told[-1]


def test_a_budget_without_a_price_is_refused(elastic: Elastic) -> None:
    with pytest.raises(ConfigError, match="--price"):
        elastic.run(ThreadFleet(["a"]), budget=1.0, engine={"replicas": 1})


@dataclass
class Market:
    """A provider that has so much spot, and any number on demand."""

    spot_to_be_had: int
    held: tuple[int, int] = (0, 0)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def offer(self) -> Offer:
        return Offer(
            spot_price=1.0, on_demand_price=3.0, spot=self.held[0], on_demand=self.held[1],
            spot_to_be_had=self.spot_to_be_had,
        )  # fmt: skip

    def desire(self, *, spot: int, on_demand: int) -> None:
        self.asked.append((spot, on_demand))
        self.held = min(spot, self.spot_to_be_had), on_demand


@pytest.mark.parametrize(("deadline", "kind"), [("10h", 0), ("1s", 1)])
def test_spot_while_there_is_time_and_on_demand_when_there_is_none(
    elastic: Elastic, deadline: str, kind: int
) -> None:
    market = Market(spot_to_be_had=2 if deadline == "10h" else 0)
    engine = {"replicas": 1, "max_replicas": 2}
    result = elastic.run(ThreadFleet(["a", "b"]), market, deadline=deadline, engine=engine)
    assert result.state == JobState.COMPLETED
    assert market.asked[0][kind] >= 1
    assert all(counts[1 - kind] == 0 for counts in market.asked)


# -- limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "most", "own", "gpus", "limits"),
    [
        (2, None, False, True, Limits(least=2, most=2)),
        (2, 5, False, True, Limits(least=2, most=5)),
        (None, 5, False, True, Limits(least=4, most=5)),
        (None, 3, False, True, Limits(least=3, most=3)),
        (None, None, False, True, Limits(least=4, most=None)),
        (None, None, True, True, Limits(least=4, most=4)),
        (None, None, False, False, Limits(least=4, most=4)),
    ],
)
def test_limits(
    make_settings: Callable[..., JobSettings],
    replicas: int | None, most: int | None, own: bool, gpus: bool, limits: Limits,
) -> None:  # fmt: skip
    request = JobRequest.of(input="i", model="m", output="o", engine={"max_replicas": most})
    settings = make_settings(replicas=replicas, request=request)
    assert limits_of(settings, 4, own=own, gpus=gpus) == limits


def test_fewer_at_most_than_at_least_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than max_replicas"):
        JobRequest.of(input="i", model="m", output="o", engine={"replicas": 3, "max_replicas": 2})
    with pytest.raises(ConfigError, match="deadline: 'soon' is not a time"):
        JobRequest.of(input="i", model="m", output="o", deadline="soon")


class Growing(ThreadFleet):
    """A cluster with one GPU, to which two nodes come while the job runs."""

    def __init__(self) -> None:
        super().__init__(["a", "b", "c"])
        node = Node(node_id="a", host="a", cpus=8, gpus=1, stable=False)
        self.info: ClusterInfo = replace(self.info, own=False, nodes=(node,))

    def capacity(self) -> Capacity:
        room = Room(cpus=8, gpus=1, free_cpus=8, free_gpus=1)
        return Capacity(nodes=(), rooms=(room,) * 3)


def test_nodes_that_join_later_get_replicas(elastic: Elastic) -> None:
    """Nothing is said of replicas: one for each GPU, also of nodes that came after the start."""
    result = elastic.run(Growing(), engine={"replica_gpus": 1})
    assert result.state == JobState.COMPLETED
    assert (1, 3) in elastic.decided()


def test_places_are_counted_by_node() -> None:
    rooms = (Room(cpus=8, gpus=4, free_cpus=0, free_gpus=0), Room(cpus=2, gpus=4, free_cpus=0, free_gpus=0))
    assert places(Capacity(nodes=(), rooms=rooms), 1.0, 1.0) == 6
    assert places(Capacity(nodes=(), rooms=rooms), 0.0, 2.0) == 4
    assert places(Capacity(nodes=(), rooms=rooms), 4.0, 0.0) == 2
    assert places(Capacity(nodes=cluster().nodes, rooms=()), 1.0, 0.0) == 0
