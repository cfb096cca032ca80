"""The order of a job's rows: said, noted with the job, and found again when the spool is lost."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.job.rows.ordering import LEAST_ROWS, ORDER, Ordering
from dray.requests.spool.spool import decode, read_shard
from dray.store import Shard, open_store

pytestmark = pytest.mark.unit

PREFIXES, ROWS = 30, 300


@pytest.fixture
def job_input(tmp_path: Path, rng: random.Random) -> Path:
    """Ten rows for each prefix, in turns."""
    path = tmp_path / "in.jsonl"
    numbers = [number % PREFIXES for number in range(ROWS)]
    rng.shuffle(numbers)
    with path.open("w") as file:
        for row, number in enumerate(numbers):
            text = f"{number} {'begins so ' * 20} {row}"
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


@pytest.fixture
def start(make_settings: Callable[..., JobSettings]) -> Callable[..., OpenJob]:
    """Opens the job, with rows in some order."""

    def opened(order: str, **changes: Any) -> OpenJob:
        request = JobRequest.of("in.jsonl", "m", "out", engine={"order": order})
        return open_job(make_settings(request=request, job_id="job", **changes))

    return opened


def prefixes(shards: list[Shard]) -> list[list[str]]:
    """The prefix of each row, by shard."""
    return [
        [
            decode(line).body["messages"][0]["content"].split()[0]
            for chunk in read_shard(one.uri, one.offset, one.length)
            for line in chunk
        ]
        for one in shards
    ]


def parted(shards: list[Shard]) -> int:
    """How often the prefix changes from one row to the next."""
    rows = [name for one in prefixes(shards) for name in one]
    return sum(one != other for one, other in itertools.pairwise(rows))


def test_rows_run_by_their_prefixes_and_no_prefix_is_in_two_shards(start: Callable[..., OpenJob]) -> None:
    job, told = start("auto"), list[str]()
    shards = ingest_job(job, replicas=2, say=told.append)
    assert parted(shards) == PREFIXES - 1
    assert len(shards) > 1
    for one, other in itertools.pairwise(prefixes(shards)):
        assert one[-1] != other[0]
    assert len(told) == 1
    assert re.match(r"rows run by their prefixes: 8\d% of the prompts .*, \d% in the input's order", told[0])
    with open_store(job.settings.store_url, create=False) as store:
        noted = store.get_job("job").info[ORDER]
    assert (noted["asked"], noted["pieces"], noted["ordered"]) == ("auto", 8, ROWS)


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(("began", "goes_on"), [("auto", "input"), ("input", "prefix"), ("prefix", "auto")])
def test_a_lost_spool_is_written_in_the_order_that_the_job_began_with(
    start: Callable[..., OpenJob], began: str, goes_on: str
) -> None:
    """Whatever its user asks for by now, and however many replicas there are."""
    job = start(began)
    before = ingest_job(job, replicas=2)
    assert (parted(before) == PREFIXES - 1) is (began != "input")
    rows = prefixes(before)
    Path(before[0].uri).unlink()
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)
    after = ingest_job(start(goes_on), replicas=5)
    assert prefixes(after) == rows
    assert [(one.offset, one.length) for one in after] == [(one.offset, one.length) for one in before]


def test_a_job_of_an_earlier_version_has_the_order_of_its_input(
    start: Callable[..., OpenJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start("input")
    with monkeypatch.context() as earlier:
        earlier.setattr(Ordering, "noted", lambda _: {})
        before = ingest_job(job, replicas=1)
    rows = prefixes(before)
    Path(before[0].uri).unlink()
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)
    assert prefixes(ingest_job(start("prefix"), replicas=1)) == rows


def test_rows_that_share_nothing_stay_as_they_are_and_it_is_said(
    start: Callable[..., OpenJob], job_input: Path
) -> None:
    rows = [json.loads(text) for text in job_input.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["body"]["messages"][0]["content"] = f"{number} is all that this row begins with, and it is long"
    job_input.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job, told = start("auto"), list[str]()
    found = prefixes(ingest_job(job, replicas=1, say=told.append))
    assert [name for one in found for name in one] == [str(number) for number in range(ROWS)]
    assert told == ["rows run in the order of the input: few of them begin alike"]


@pytest.mark.parametrize(("order", "grouped"), [("auto", False), ("prefix", True)])
def test_few_rows_are_left_as_they_are_unless_someone_asks(
    start: Callable[..., OpenJob], job_input: Path, order: str, grouped: bool
) -> None:
    rows = job_input.read_text().splitlines(keepends=True)
    job_input.write_text("".join(rows[: LEAST_ROWS - 1]))
    told: list[str] = []
    assert (parted(ingest_job(start(order), replicas=1, say=told.append)) == PREFIXES - 1) is grouped
    assert len(told) == grouped


def test_engines_without_a_prefix_cache_have_no_use_for_it(
    start: Callable[..., OpenJob], make_settings: Callable[..., JobSettings]
) -> None:
    job = start("auto")
    with open_store(job.settings.store_url, create=False) as store:
        recorded = store.get_job("job")
    without = make_settings(engine="vllm", engine_arguments={"enable_prefix_caching": False})
    assert not Ordering.of(recorded, without, 1).cached
    assert Ordering.of(recorded, make_settings(engine="vllm"), 1).cached
