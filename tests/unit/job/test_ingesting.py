"""Into how many shards a job is cut."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from dray.cluster.placing import USUAL_SEQS
from dray.errors import InputError
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.job.rows.shard_sizes import ROWS, ShardSizes
from dray.job.rows.sharing import has_followers, told_of
from dray.requests.ingest import Ingested, cut
from dray.requests.sources import source_of
from dray.requests.spool.marks import Mark, Marks, SpoolPart, enough_ranges, steps
from dray.requests.spool.spool import MAX_MARKS
from dray.store import Store, open_store

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("replicas", [1, 4])
def test_rows_of_a_shard_that_are_given_are_kept(
    replicas: int, make_settings: Callable[..., JobSettings]
) -> None:
    shards = ingest_job(open_job(make_settings(shard_rows=10)), replicas=replicas)
    assert [shard.rows for shard in shards] == [10] * 5


def test_a_small_job_is_one_shard(make_settings: Callable[..., JobSettings]) -> None:
    assert len(ingest_job(open_job(make_settings()), replicas=4)) == 1


@pytest.mark.parametrize(
    ("requests", "replicas", "shards"),
    [(1, 4, 1), (127, 4, 1), (2_000, 3, 6), (36_000, 4, 64), (10_000_000, 4, 64), (36_000, 1, 1)],
)
def test_there_are_shards_for_a_replica_that_comes_back(requests: int, replicas: int, shards: int) -> None:
    assert ShardSizes(replicas=replicas, batch=USUAL_SEQS).least(requests) == shards


@pytest.mark.parametrize(
    ("arguments", "shards"), [({}, 4), ({"max_num_seqs": 30}, 15), ({"max_num_seqs": 200}, 5)]
)
def test_the_batch_that_a_user_gives_makes_shards_larger(
    arguments: dict[str, int], shards: int, tmp_path: Path, make_settings: Callable[..., JobSettings]
) -> None:
    row = {"custom_id": "", "method": "POST", "url": "/v1/chat/completions"}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    path = tmp_path / "two_thousand.jsonl"
    path.write_text("\n".join(json.dumps(row | {"custom_id": f"row-{n}", "body": body}) for n in range(2000)))
    job = open_job(make_settings(source=source_of([str(path)]), engine_arguments=arguments))
    assert len(ingest_job(job, replicas=2)) == shards


@pytest.mark.parametrize(
    ("requests", "replicas", "batch", "shards"),
    [(6_000, 2, 512, 5), (6_000, 2, 16, 32), (1_000, 4, 512, 7), (100, 4, 512, 1), (10**6, 2, 512, 32)],
)
def test_shards_hold_more_rows_than_a_batch(requests: int, replicas: int, batch: int, shards: int) -> None:
    assert ShardSizes(replicas=replicas, batch=batch).least(requests) == shards


@pytest.mark.parametrize(("replicas", "most"), [(1, 16_384), (1000, 16_384), (2000, 32_000)])
def test_no_replica_idles_for_lack_of_a_shard(replicas: int, most: int) -> None:
    sizes = ShardSizes(replicas=replicas, batch=USUAL_SEQS)
    assert sizes.most == most <= MAX_MARKS // 2  # the spool can be cut into as many
    assert sizes.least(10**9) <= most


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("requests", "replicas", "shards"),
    [
        (8192 * 512 * 4, 1, 2048),
        (10**6, 8, 147),
        (2 * 10**6, 8, 269),
        (10**8, 8, 12_232),
        (10**8, 1000, 16_000),
        (10**9, 8, 16_384),
        (10**9, 1000, 16_384),
    ],
)
def test_a_shard_is_minutes_of_work(requests: int, replicas: int, shards: int) -> None:
    """50 rows/s are a small model on one GPU; 76,290 rows take it 25 minutes. The last shards are smaller."""
    stride = max(1, requests // (MAX_MARKS - 1))
    rows = range(0, requests, stride)
    ingested = Ingested(
        rows=requests,
        requests=requests,
        parts=(SpoolPart("spool", requests * 1000, Mark(0, 0)),),
        part_bytes=None,
        spool_sha256="",
        rejects_uri=None,
        marks=Marks(array("q", (row * 1000 for row in rows)), array("q", rows)),
        model_name=None,
        kinds=frozenset(),
        files=(),
    )
    sizes = ShardSizes(replicas=replicas, batch=USUAL_SEQS)
    least, taper = sizes.least(requests), sizes.taper
    found = cut(ingested, target_rows=ROWS, max_shards=sizes.most, min_shards=least, taper=taper)
    assert len(found) == shards
    assert max(part.rows for part in found) <= (8192 + stride if requests <= 8192 * 16_384 else 77_000)
    assert sum(part.rows for part in found) == requests


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("batch", [16, 256, 1024, 3000, 5000])
@pytest.mark.parametrize("replicas", [2, 8, 100])
def test_smaller_last_shards_make_no_other_too_large(replicas: int, batch: int) -> None:
    sizes = ShardSizes(replicas=replicas, batch=batch)
    taper = sizes.taper
    assert taper is not None
    for rows in [*range(1, 40_000, 1013), *range(40_000, 5_000_000, 99_991)]:
        least = sizes.least(rows)
        ranges = enough_ranges(rows, ROWS, least, taper)
        begins = [*steps(rows, ranges, taper), Fraction(1)]
        assert max(rows * (end - begin) for begin, end in pairwise(begins)) <= ROWS + 1
        assert ranges <= max(least, -(-rows // ROWS) + 3 * replicas)


def test_the_last_shards_of_several_replicas_are_smaller(
    make_settings: Callable[..., JobSettings], tmp_path: Path
) -> None:
    """16,384 rows: 16 shards for each of two replicas, whose last four hold a quarter of the others'."""
    rows = 128 * 128
    source = tmp_path / "many.jsonl"
    row = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    source.write_text("".join(json.dumps({"custom_id": f"id-{n}", **row}) + "\n" for n in range(rows)))
    settings = make_settings(source=source_of(str(source)), engine_arguments={"max_num_seqs": 16})
    sizes = [shard.rows for shard in ingest_job(open_job(settings), replicas=2)]
    assert sum(sizes) == rows
    assert (len(sizes), max(sizes), min(sizes)) == (32, 631, 157)
    assert max(sizes[-8:]) < min(sizes[:-8]) / 3


def _row(number: int, text: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    row = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(row) + "\n"


def test_what_a_run_shared_that_died_before_its_end_is_forgotten(
    tmp_path: Path, make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run takes rows for followers, and refuses to write a lost spool again."""
    path = tmp_path / "same.jsonl"
    path.write_text("".join(_row(number, "same") for number in range(20)))
    source = source_of([str(path)])

    def begun(*, dedupe: bool) -> OpenJob:
        request = JobRequest(input=[], model="", output="", dedupe=dedupe)
        return open_job(make_settings(source=source, job_id="job", request=request))

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    first = begun(dedupe=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "add_shards", die)
        ingest_job(first, replicas=1)
    with open_store(first.settings.store_url) as store:
        assert store.get_job("job").info["shared"]["followers"] == 19
        store.merge_job_info(first.lease, {"chat_template": "digest"})  # as a run with a template of its own
        store.release_job(first.lease)
        second = begun(dedupe=False)
        shards = ingest_job(second, replicas=1)
        recorded = store.get_job("job")
        assert sum(shard.rows for shard in shards) == 20
        assert (told_of(second, recorded), has_followers(recorded)) == ([], False)
        assert recorded.info["chat_template"] is None
        for uri in {shard.uri for shard in shards}:
            Path(uri).unlink()
        assert sum(shard.rows for shard in ingest_job(second, replicas=1)) == 20


@pytest.mark.parametrize("change", ["another row", "another file", "a file less", "while it is read"])
def test_rows_of_another_input_than_the_fingerprints_are_refused(
    change: str, tmp_path: Path, make_settings: Callable[..., JobSettings]
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.jsonl").write_text(_row(number, "old"))
    job = open_job(make_settings(source=source_of([f"{folder}/*.jsonl"])))
    named = folder / {"another row": "0", "another file": "2", "a file less": "1"}.get(change, "0")

    def act(rows: int = 0) -> None:
        if change == "a file less":
            named.with_suffix(".jsonl").unlink()
        else:
            named.with_suffix(".jsonl").write_text(_row(int(named.name), "new"))

    if change != "while it is read":
        act()
    with pytest.raises(InputError, match=f"{named}.jsonl: it changed, came or went"):
        ingest_job(job, replicas=1, progress=act if change == "while it is read" else None)
    with open_store(job.settings.store_url) as store:
        assert store.get_job(job.job_id).total is None
