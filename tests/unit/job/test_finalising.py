"""What a job's last step writes, and what it leaves as it is."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.account import Span
from dray.engine.protocol import EngineInfo
from dray.engine.tuning import BatchLimits, Tuned
from dray.job.beginning.opening import open_job
from dray.job.ending import finalising
from dray.job.ending.finalising import finalise_job
from dray.job.ending.reporting import ReplicaAccount
from dray.job.ending.result import JobResult
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.report import ReportData, render_html
from dray.report.billing import bill_sentences
from dray.requests.model import Outcome
from dray.requests.spool.spool import decode, read_shard
from dray.store import Job, JobState, Store, open_store
from tests.support.clocks import Clocks

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]


def answered(job: OpenJob, replica: str | None = None) -> None:
    """Every row that is left has an answer."""
    with open_store(job.settings.store_url, create=False) as store:
        for shard in ingest_job(job, replicas=1):
            lease = store.claim_shard(job.lease, shard.number, owner="test", replica=replica)
            if lease is None:
                continue
            for chunk in read_shard(shard.uri, shard.offset, shard.length):
                requests = [decode(line) for line in chunk]
                store.commit(
                    lease, [Outcome(r.index, r.custom_id, b"{}", completion_tokens=1) for r in requests]
                )
            store.finish_shard(lease)


def ended(job: OpenJob, timeline: Timeline | None = None) -> tuple[JobResult, Job]:
    result = finalise_job(job, timeline or Timeline())
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)
        return result, store.get_job(job.job_id)


def test_a_job_that_is_done_keeps_its_report_and_result_when_repeated(make_settings: MakeSettings) -> None:
    job = open_job(make_settings())
    answered(job)
    timeline = Timeline()
    timeline.add("inference", time.time() - 5, time.time())
    _, first = ended(job, timeline)
    out = Path(job.settings.output)
    files = {name: (out / name).read_bytes() for name in ("output.jsonl", "errors.jsonl", "report.html")}
    for name in files:
        (out / name).unlink()

    again = open_job(make_settings())
    answered(again)
    result, second = ended(again)

    assert {name: (out / name).read_bytes() for name in files} == files
    assert second.summary == first.summary
    assert second.state is JobState.COMPLETED
    assert result.counts == {"total": 50, "done": 50, "failed": 0, "skipped": 50}  # its own
    assert result.error_codes == {}
    assert ReportData.from_json(second.summary["report"]).seconds["inference"] == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("moved", ["folder", "format"])
def test_a_job_that_is_repeated_elsewhere_tells_where_its_files_are(
    moved: str, make_settings: MakeSettings, tmp_path: Path
) -> None:
    store = {"store_url": f"sqlite:///{tmp_path / 'dray.db'}", "job_id": "job"}
    job = open_job(make_settings(**store))
    answered(job)
    _, first = ended(job)
    changes = {"output": str(tmp_path / "new")} if moved == "folder" else {"format": "parquet"}
    again = open_job(make_settings(**store, **changes))
    answered(again)
    result, second = ended(again)
    told = second.summary["result"]
    assert (told["output"], told["errors"], told["report"]) == (result.output, result.errors, result.report)
    assert told["output"] != first.summary["result"]["output"]
    assert told["counts"] == first.summary["result"]["counts"]
    report = ReportData.from_json(second.summary["report"])
    assert report.files[0].uri == result.output
    assert result.report is not None
    assert Path(result.report).read_text() == render_html(report)


@pytest.mark.parametrize("given", ["while it ran", "after its end"])
def test_a_price_that_is_given_later_counts_for_nodes_that_had_none(
    given: str, make_settings: MakeSettings
) -> None:
    job = open_job(make_settings())
    early = Span(
        epoch=1, node="n", host="h", place=0, places=1, replica="replica-0", phase="busy",
        started=job.started, micros=3_600_000_000,
    )  # fmt: skip
    with open_store(job.settings.store_url, create=False) as store:
        store.put_spans(job.lease, [early])
    if given == "after its end":
        answered(job)
        _, first = ended(job)
        assert first.summary["result"]["cost"]["dollars"] is None
    else:
        with open_store(job.settings.store_url, create=False) as store:
            store.release_job(job.lease)
    again = open_job(make_settings(request=JobRequest(input=[], model="", output="", price=2.0)))
    answered(again)
    _, done = ended(again)
    account = ReportData.from_json(done.summary["report"]).account
    assert account is not None
    assert account.dollars == pytest.approx(2.0, abs=0.01)
    assert done.summary["result"]["cost"]["dollars"] == account.dollars
    assert not [line for line in bill_sentences(account) if "--price" in line]


def test_the_report_reads_the_attempts_once(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long job has hundreds of thousands."""
    real, reads = Store.attempts, []

    def noted(store: Store, job_id: str) -> Any:
        reads.append(job_id)
        return real(store, job_id)

    monkeypatch.setattr(Store, "attempts", noted)
    job = open_job(make_settings())
    answered(job)
    _, found = ended(job)
    assert reads == [job.job_id]
    assert len(ReportData.from_json(found.summary["report"]).attempts) == 1


def test_a_run_that_finished_rows_tells_its_own_story(make_settings: MakeSettings) -> None:
    job = open_job(make_settings())
    ingest_job(job, replicas=1)
    result = finalise_job(job, Timeline(), state=JobState.CANCELLED)
    assert result.counts["done"] == 0
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)
    again = open_job(make_settings())
    answered(again)
    _, done = ended(again)
    assert (done.summary["result"]["state"], done.summary["result"]["counts"]["done"]) == ("completed", 50)


def test_a_job_is_cancelled_before_its_rows_are_read(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a run that was cancelled in Prefect may be killed meanwhile."""

    def killed(store: Store, job_id: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "outcomes", killed)
    job = open_job(make_settings())
    answered(job)
    with pytest.raises(KeyboardInterrupt):
        finalise_job(job, Timeline(), state=JobState.CANCELLED)
    with open_store(job.settings.store_url, create=False) as store:
        assert store.get_job(job.job_id).state is JobState.CANCELLED


def test_very_many_rows_of_a_cancelled_job_are_counted_and_not_read(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_job(make_settings(shard_rows=25))
    first, _ = ingest_job(job, replicas=1)
    with open_store(job.settings.store_url, create=False) as store:
        lease = store.claim_shard(job.lease, first.number, owner="test")
        assert lease is not None
        answers = [
            Outcome(n, None, b"{}", prompt_tokens=5, cached_tokens=2, completion_tokens=3) for n in range(4)
        ]
        store.commit(lease, [*answers, Outcome(4, None, error_code="poison", prompt_tokens=1)])
    read = finalise_job(job, Timeline(), state=JobState.CANCELLED)
    assert read.error_codes == {"poison": 1}

    monkeypatch.setattr(finalising, "_MOST_READ", 4)
    monkeypatch.setattr(Store, "outcomes", None)
    counted = finalise_job(job, Timeline(), state=JobState.CANCELLED)
    assert counted.counts == read.counts == {"total": 50, "done": 4, "failed": 1, "skipped": 0}
    assert counted.tokens == read.tokens == {"prompt": 21, "cached": 8, "completion": 12}
    with open_store(job.settings.store_url, create=False) as store:
        kept = store.get_job(job.job_id)
    page = render_html(ReportData.from_json(kept.summary["report"]))
    assert (kept.state, kept.summary["result"]["state"]) == (JobState.CANCELLED, "cancelled")
    assert "no throughput to draw" not in page
    assert "No row ended in an error" not in page


def test_a_lease_that_lapsed_is_an_interruption_of_the_job_too(make_settings: MakeSettings) -> None:
    job = open_job(make_settings())
    [shard] = ingest_job(job, replicas=1)
    with open_store(job.settings.store_url, create=False) as store:
        store.claim_shard(job.lease, shard.number, owner="stands still", ttl=0.0)
    answered(job)
    result, _ = ended(job)
    assert (result.interruptions, result.retries) == (1, {"LEASE_EXPIRED": 1})


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0])
def test_a_clock_that_is_set_bills_and_tells_the_time_that_passed(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """NTP sets this machine's clock after the last look at its node, two minutes before the job ends."""
    clocks = Clocks(monkeypatch)
    job = open_job(make_settings())
    timeline = Timeline(job.started, job.clock)
    with timeline.phase("engine_start"):
        clocks.go_on(60.0)
        clocks.wall += step
    answered(job)
    worked = Span(
        epoch=job.lease.epoch, node="n", host=socket.gethostname(), place=0, places=1, replica="replica-0",
        phase="busy", started=job.started, micros=60_000_000,
    )  # fmt: skip
    with open_store(job.settings.store_url, create=False) as store:
        store.put_spans(job.lease, [worked])
    clocks.go_on(120.0)
    _, done = ended(job, timeline)
    data = ReportData.from_json(done.summary["report"])
    assert data.account is not None
    assert data.account.node_micros == 180_000_000
    assert (data.seconds["engine_start"], data.seconds["total"]) == (60.0, 180.0)
    assert data.started is not None and data.ended is not None
    assert data.ended - data.started == 180.0


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_rows_of_a_run_are_told_by_the_stores_clock(make_settings: MakeSettings, ahead: float) -> None:
    """The driver's clock may be another one than the database's."""
    job = open_job(make_settings(), started=time.time() + ahead)
    answered(job)
    _, done = ended(job)
    assert ReportData.from_json(done.summary["report"]).measures.run_rows == 50


def test_the_report_says_when_on_what_and_how_many_rows_each_file_has(make_settings: MakeSettings) -> None:
    """The engine's version is what its replicas say: the driver need not have one."""
    job = open_job(make_settings())
    answered(job)
    timeline = Timeline()
    timeline.add("cluster", timeline.started - 3, timeline.started)  # begun before the flow
    replicas = [
        ReplicaAccount(name=f"replica-{n}", engine="vllm", version=version)
        for n, version in enumerate(["0.32.0", "0.33.0", "0.32.0"])
    ]
    finalise_job(job, timeline, replicas)
    with open_store(job.settings.store_url, create=False) as store:
        known = store.get_job(job.job_id)
    data = ReportData.from_json(known.summary["report"])
    assert data.environment["vllm"] == "0.32.0, 0.33.0"
    assert {file.name: file.rows for file in data.files} == {"output.jsonl": 50, "errors.jsonl": 0}
    assert data.created == known.created_at
    assert data.started == timeline.started - 3
    assert data.ended == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("compared", [5, 0])
def test_what_auto_found_is_told_where_settings_were_compared(
    make_settings: MakeSettings, compared: int
) -> None:
    job = open_job(make_settings())
    answered(job)
    tuned = Tuned(
        limits=BatchLimits(64, 2048), started=BatchLimits(256, 8192), gain=1.25, candidates=compared,
        seconds=8.0, sequences=900.0,
    )  # fmt: skip
    result = finalise_job(job, Timeline(), [ReplicaAccount(name="job/1/replica-0", tuned=tuned)])
    page = (Path(job.settings.output) / "report.html").read_text()
    sentence = "replica-0 found its limits in 8 s, on 900 sequences: max_num_active_seqs=64"
    if not compared:
        assert result.tuned == {}
        assert "found its limits" not in page
        return
    found = result.tuned["replica-0"]
    assert (found["max_num_active_seqs"], found["max_num_scheduled_tokens"]) == (64, 2048)
    assert sentence in page
    assert "1.25 times as fast" in page


def test_the_report_has_all_rows_that_a_replica_committed_before_it_died(make_settings: MakeSettings) -> None:
    """Its own counters were last seen before that, or never."""
    job = open_job(make_settings())
    answered(job, replica="job/1/replica-0")
    seen = ReplicaAccount(name="job/1/replica-0", rows=3, tokens=30, busy_seconds=2.0)
    finalise_job(job, Timeline(), [seen, ReplicaAccount(name="job/1/replica-0~1")])
    with open_store(job.settings.store_url, create=False) as store:
        data = ReportData.from_json(store.get_job(job.job_id).summary["report"])
    found = {one.name: (one.rows, one.busy_seconds, one.tokens_per_second) for one in data.replicas}
    assert found == {"replica-0": (50, 2.0, 15.0), "replica-0~1": (0, None, None)}
    page = (Path(job.settings.output) / "report.html").read_text()
    assert '<td class="num">\u2013</td><td class="num">0</td>' in page


def test_a_replica_is_learned_from_with_the_limits_that_it_ran_under() -> None:
    info = EngineInfo(
        engine="vllm", version="0", model="m", max_num_seqs=256, max_model_len=9, timeline={},
        max_num_batched_tokens=8192,
    )  # fmt: skip
    tuned = Tuned(
        limits=BatchLimits(64, 2048),
        started=BatchLimits(256, 8192),
        gain=1.25,
        candidates=5,
        seconds=1,
        sequences=9,
    )
    ran = ReplicaAccount(name="r", info=info, tuned=tuned).ran_as
    assert ran is not None
    assert (ran.max_num_seqs, ran.max_num_batched_tokens) == (64, 2048)
    assert ReplicaAccount(name="r", info=info).ran_as == info
