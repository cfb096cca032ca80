"""One bad row, wherever it stands and whatever it takes along, ends as one error row, and no other does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of
from dray.shard.backoff import NO_WAIT_VARIABLE
from tests.support.lanes import Lanes, Takes, write_marked

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SEQS = 16
TWO = ("node-a", "node-b")
CODES: dict[Takes, str] = {"memory": "out_of_memory", "engine": "poison", "node": "poison"}
ALL: tuple[Takes, ...] = ("memory", "engine", "node")


@pytest.fixture(autouse=True)
def _at_once(eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Lanes]:
    def make(
        rows: int,
        bad: set[int],
        *nodes: str,
        store: str = "",
        shard_rows: int | None = None,
        **changes: Any,
    ) -> Lanes:
        path = write_marked(tmp_path / "in.jsonl", rows, bad)
        settings = JobSettings(
            source=source_of([str(path)]),
            defaults=RowDefaults(sampling={"temperature": 0}),
            model="simulated",
            output=str(tmp_path / "out"),
            store_url=store or f"sqlite:///{tmp_path / 'store.db'}",
            engine="simulated",
            engine_arguments={"max_num_seqs": SEQS, "seconds_per_token": 0.001},
            job_id="job",
            shard_rows=shard_rows,
        )
        return Lanes(settings, nodes, **changes)

    return make


@pytest.mark.heavy
@pytest.mark.parametrize("takes", ALL)
@pytest.mark.parametrize(
    "bad", [{0}, {300}, {599}, {300, 301}], ids=["first", "middle", "last", "two adjacent"]
)
def test_only_bad_rows_are_error_rows(bad: set[int], takes: Takes, make_job: Callable[..., Lanes]) -> None:
    job = make_job(600, bad, *TWO, takes=takes)
    counts = job.run()
    assert job.failure is None
    assert job.errors() == dict.fromkeys(bad, CODES[takes])
    assert (counts.done, counts.pending) == (600 - len(bad), 0)
    print(f"{takes}, {sorted(bad)}: {len(job.deaths)} engines")
    assert len(job.deaths) <= len(bad) * most_engines(takes)


def most_engines(takes: Takes) -> int:
    """What docs/interruptions.md says that one bad row costs at most: the rows fed are halved."""
    return math.ceil(math.log2(2.5 * SEQS)) + {"engine": 4, "memory": 6, "node": 8}[takes]


@pytest.mark.heavy
@pytest.mark.parametrize("takes", ["engine", "node"])
def test_many_bad_rows_side_by_side_are_error_rows(takes: Takes, make_job: Callable[..., Lanes]) -> None:
    """The rows beside them are answered, and no row between them is: more losses than the budgets have."""
    bad = set(range(140, 154))
    job = make_job(154, bad, *TWO, takes=takes, most=200)
    counts = job.run()
    assert job.failure is None
    assert job.errors() == dict.fromkeys(bad, CODES[takes])
    assert (counts.done, counts.pending) == (140, 0)


@pytest.mark.heavy
@pytest.mark.parametrize("takes", ALL)
def test_only_bad_rows_are_error_rows_on_postgresql(
    takes: Takes, postgres_url: str, make_job: Callable[..., Lanes]
) -> None:
    job = make_job(600, {300}, *TWO, takes=takes, store=postgres_url)
    assert job.run().done == 599
    assert job.failure is None
    assert job.errors() == {300: CODES[takes]}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("rows", "takes", "nodes"),
    [(rows, takes, TWO) for rows in (1, 8, 26) for takes in ALL] + [(1, takes, ("node-a",)) for takes in ALL],
)
def test_small_jobs(rows: int, takes: Takes, nodes: tuple[str, ...], make_job: Callable[..., Lanes]) -> None:
    job = make_job(rows, {rows // 2}, *nodes, takes=takes)
    job.run()
    assert job.failure is None
    assert job.errors() == {rows // 2: CODES[takes]}
    assert len(job.deaths) <= most_engines(takes)


@pytest.mark.heavy
@pytest.mark.parametrize("rows", [1, 12, 26])
def test_where_every_engine_dies_the_job_fails_and_no_row_is_blamed(
    rows: int, make_job: Callable[..., Lanes]
) -> None:
    job = make_job(rows, set(), "node-a", broken=frozenset({"node-a"}))
    counts = job.run()
    assert job.failure is not None
    assert "try the model and its engine arguments with one row" in job.failure
    assert (counts.done, counts.failed) == (0, 0)
    assert 25 < len(job.deaths) <= 27


@pytest.mark.heavy
@pytest.mark.parametrize(("rows", "bad"), [(600, set()), (600, {300}), (8, {5}), (1, {0}), (26, set())])
def test_beside_a_node_whose_every_engine_dies(
    rows: int, bad: set[int], make_job: Callable[..., Lanes]
) -> None:
    job = make_job(rows, bad, *TWO, broken=frozenset({"node-a"}))
    counts = job.run()
    assert job.failure is None
    assert job.errors() == dict.fromkeys(bad, "poison")
    assert counts.done == rows - len(bad)


@pytest.mark.heavy(one_of=3)
def test_a_node_that_kills_the_engines_of_good_rows_convicts_none(make_job: Callable[..., Lanes]) -> None:
    """Its engines answer dray's own request first: only a second place tells that it is not the rows."""
    job = make_job(200, set(), *TWO, broken=frozenset({"node-a"}), fatal="prompt", shard_rows=8)
    counts = job.run()
    assert job.failure is None
    assert (counts.done, counts.failed) == (200, 0)
    assert job.deaths


def _failure(job: Lanes) -> str | None:
    """As it is now: mypy takes a value that a test has seen for the value for ever."""
    return job.failure


@pytest.mark.heavy
def test_a_failed_job_that_is_resumed_has_its_budgets_again(make_job: Callable[..., Lanes]) -> None:
    """After the advice was followed it goes on, and survives the first loss."""
    job = make_job(40, {3}, "node-a", broken=frozenset({"node-a"}))
    job.run()
    assert _failure(job) is not None
    job.broken = frozenset()  # the node was mended
    counts = job.run()
    assert _failure(job) is None
    assert job.errors() == {3: "poison"}
    assert counts.done == 39
