"""What a finished run keeps for later plans: the efficiency of one device, and of whole ones."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.account import Predicted, Span
from dray.engine.protocol import EngineInfo
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.learning import FinishedRun
from dray.job.ending.reporting import ReplicaAccount
from dray.job.ending.timeline import Timeline
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.planner.measured_run import forecast
from dray.report import Moments, ReportData
from dray.requests.model import Outcome, Request
from dray.requests.spool.spool import decode, read_shard
from dray.store import Efficiency, open_store
from tests.support.model_configs import LLAMA_8B

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]

INFO = EngineInfo(
    engine="vllm", version="0.32.0", model="m", max_num_seqs=256, max_model_len=8192, timeline={},
    max_num_batched_tokens=8192, device="NVIDIA L4", config=json.dumps(LLAMA_8B),
)  # fmt: skip


def replica(
    name: str, device: str, rows: int, busy: float, *, ready: float = 800.0, node: str | None = None
) -> ReplicaAccount:
    now = time.time()
    return ReplicaAccount(
        name=name, node=name if node is None else node, engine="vllm", version="0.32.0", rows=rows,
        busy_seconds=busy, moments=Moments(asked=now - 900, began=now - 890, ready=now - ready),
        info=replace(INFO, device=device),
    )  # fmt: skip


def answered(request: Request, response: bytes = b"{}") -> Outcome:
    return Outcome(request.index, request.custom_id, response, prompt_tokens=300, completion_tokens=100)


def finished(
    settings: JobSettings,
    replicas: Sequence[ReplicaAccount],
    outcome: Callable[[Request], Outcome] = answered,
) -> tuple[list[Efficiency], Predicted | None]:
    """What a job of these replicas keeps, and what its report says was predicted."""
    job = open_job(settings)
    timeline = Timeline()
    timeline.add("inference", time.time() - 800, time.time())
    worked = Span(
        epoch=job.lease.epoch, node="n", host=socket.gethostname(), place=0, places=1, replica="r",
        phase="busy", started=job.started, micros=60_000_000,
    )  # fmt: skip
    with open_store(settings.store_url, create=False) as store:
        store.put_spans(job.lease, [worked])
        for shard in ingest_job(job, replicas=1):
            lease = store.claim_shard(job.lease, shard.number, owner="test")
            assert lease is not None
            for chunk in read_shard(shard.uri, shard.offset, shard.length):
                requests = [decode(line) for line in chunk]
                store.commit(lease, list(map(outcome, requests)))
            store.finish_shard(lease)
    finalise_job(job, timeline, replicas)
    with open_store(settings.store_url, create=False) as store:
        data = ReportData.from_json(store.get_job(job.job_id).summary["report"])
        assert data.account is not None
        return store.efficiencies(), data.account.predicted


L40S = replica("a", "NVIDIA L40S", 3000, 280.0)
L4 = [replica(name, "NVIDIA L4", 800, 300.0) for name in "bcd"]


@pytest.mark.parametrize("replicas", [[L40S, *L4], [*L4, L40S]], ids=["L40S first", "L4 first"])
def test_a_run_on_several_devices_tells_of_one_with_its_own_rows(
    make_settings: MakeSettings, tmp_path: Path, replicas: list[ReplicaAccount]
) -> None:
    """Rows and seconds of all, taken for those of the first one's device, made a phi 0.3 or 2 of 0.9."""
    alone = make_settings(job_id="alone", store_url=f"sqlite:///{tmp_path / 'alone.db'}")
    [own], _ = finished(alone, L4)
    with open_store(alone.store_url, create=False) as store:
        store.put_efficiency(replace(own, job="earlier"))
    _, expected = finished(replace(alone, job_id="again", output=str(tmp_path / "again")), L4)
    assert expected is not None
    mixed = replace(alone, job_id="mixed", output=str(tmp_path / "mixed"))
    known, predicted = finished(mixed, replicas)
    [measured] = [one for one in known if one.job == own.job]
    assert (measured.device, measured.rows) == ("L4", 2400)
    assert measured.phi == pytest.approx(own.phi)
    assert predicted is None  # that of so many L4 says nothing of these


@pytest.mark.parametrize("gpus", [0.5, 1, None])
def test_a_replica_on_a_part_of_a_gpu_says_nothing_of_a_whole_one(
    make_settings: MakeSettings, gpus: float | None
) -> None:
    known, _ = finished(make_settings(replica_gpus=gpus), L4)
    assert len(known) == (0 if gpus == 0.5 else 1)


def test_error_rows_are_no_short_answers(make_settings: MakeSettings) -> None:
    """A later plan takes the mean for rows that are answered."""

    def outcome(request: Request) -> Outcome:
        if request.index % 3:
            return answered(request)
        return Outcome(request.index, request.custom_id, None, "unknown_field", "no such field")

    [learned], _ = finished(make_settings(), L4, outcome)
    assert learned.shape is not None
    assert learned.output_tokens == 100
    assert not learned.cut


@pytest.mark.parametrize(("every", "cut"), [(1, True), (5, True), (20, False)])
def test_a_run_whose_answers_ended_at_their_limit_says_so(
    make_settings: MakeSettings, every: int, cut: bool
) -> None:
    ended = b'{"choices":[{"finish_reason":"length"}]}'

    def outcome(request: Request) -> Outcome:
        return answered(request, b"{}" if request.index % every else ended)

    [learned], _ = finished(make_settings(), L4, outcome)
    assert (learned.output_tokens, learned.cut) == (100, cut)


def predicted(settings: JobSettings, replicas: Sequence[ReplicaAccount], job: str) -> Predicted:
    """Of a second run of a store."""
    with open_store(settings.store_url, create=False) as store:
        [known, *_] = store.efficiencies()
    assert known.phi > 0
    _, found = finished(replace(settings, job_id=job, output=f"{settings.output}-{job}"), replicas)
    assert found is not None
    return found


def test_a_replica_and_its_successors_count_as_one(make_settings: MakeSettings) -> None:
    """By incarnations, a run on spot machines was expected in a fraction of its time, and its tail often."""
    lost = [replica(f"b{g}", "NVIDIA L4", 300, 100.0, node=f"n{g}") for g in ("", "~1", "~2")]
    other = [replica("c", "NVIDIA L4", 900, 300.0)]
    settings = make_settings()
    [whole], _ = finished(settings, [replica("b", "NVIDIA L4", 900, 300.0), *other])
    expected = predicted(settings, [replica("b", "NVIDIA L4", 900, 300.0), *other], "whole")
    found = predicted(settings, [*lost, *other], "lost")
    assert found.seconds == pytest.approx(expected.seconds, rel=0.01)
    with open_store(settings.store_url, create=False) as store:
        assert store.efficiencies()[0].phi == pytest.approx(whole.phi, rel=0.01)


def test_a_replica_that_joins_late_counts_from_there(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, counts = make_settings(), []

    def kept(*given: Any, replicas: float, start: float) -> Any:
        counts.append(replicas)
        return forecast(*given, replicas=replicas, start=start)

    monkeypatch.setattr("dray.job.ending.learning.forecast", kept)
    finished(settings, L4)
    joined = {"b": 800.0, "c": 400.0, "d": 400.0}  # seconds ago
    late = [replica(name, "NVIDIA L4", 800, 300.0, ready=ready) for name, ready in joined.items()]
    predicted(settings, late, "late")
    assert counts == [pytest.approx(2.0, rel=0.05)]


def test_a_replica_over_two_nodes_costs_two() -> None:
    run: Any = SimpleNamespace(
        arguments={"nnodes": 2}, nodes=frozenset("ab"), replicas=1.5, work={"a": 1, "b": 1}
    )
    assert FinishedRun.mean_nodes.fget(run) == 3.0  # type: ignore[attr-defined]
