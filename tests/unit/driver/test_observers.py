"""What the log, the listeners and the report make of events. An account is of the process that started."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from dray.driver.events import (
    Progressed,
    ReplicaChanged,
    ReplicaLogged,
    ReplicaLooked,
    ReplicaReady,
    ShardFinished,
    ShardSubmitted,
    Warned,
)
from dray.driver.replicas.handle import ReplicaHandle, ReplicaStart
from dray.driver.telling.observers import ListenersObserver, LogObserver, ReportObserver
from dray.engine.loop_stats import LoopStats
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.replica import ReplicaStatus
from dray.job import current_job
from dray.job.ending.reporting import ReplicaAccount
from dray.job.ending.timeline import Timeline
from dray.kinds import Kind
from dray.report import Pulse
from dray.shard.task import Ended
from dray.shard.work import ShardReceipt
from tests.support.clocks import Clocks
from tests.unit.driver.scripted import ScriptedProcess

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT)
PULSE = Pulse(finished=1, failed=0, total=2)


def _start(name: str = "job/replica-0", began: float = 100.0) -> ReplicaStart:
    info = EngineInfo(
        engine="vllm", version="0", model="m", max_num_seqs=1, max_model_len=9, timeline={"import": 2.0},
        weights=(90.0, 104.0),
    )  # fmt: skip
    return ReplicaStart(name=name, began=began, placed=began, process=began + 1, ready=began + 5, info=info)


def _status(began: float) -> ReplicaStatus:
    return ReplicaStatus(
        name="job/replica-0", node="n", pid=1, began=began, running=0, waiting=0, sessions=0, log=[],
        stats=LoopStats(finished=7, first_token_at=began + 5.0),
    )  # fmt: skip


def _account(*statuses: ReplicaStatus) -> ReplicaAccount:
    report = ReportObserver(Timeline(80.0))
    report.hear(ReplicaReady(start=_start()))
    for status in statuses:
        report.hear(ReplicaLooked(status=status))
    [account] = report.accounts()
    return account


def test_an_account_says_when_the_start_got_how_far() -> None:
    account = _account(_status(101.0))
    assert account.startup == {"import": 2.0}
    assert account.rows == 7
    moments = account.moments
    assert moments is not None
    assert (moments.asked, moments.began, moments.ready, moments.first_token) == (100, 101, 105, 106)
    assert moments.weights == (90, 104)


def test_a_first_token_of_a_replacement_is_not_told_as_that_of_the_start() -> None:
    account, unseen = _account(_status(500.0)), _account()
    assert account.moments == unseen.moments
    assert account.moments is not None
    assert account.moments.first_token is None


def test_the_time_of_a_run_is_told_by_its_events() -> None:
    timeline = Timeline(80.0)
    report = ReportObserver(timeline)
    report.hear(ReplicaReady(start=_start()))
    report.hear(ReplicaReady(start=_start("job/replica-0~1", began=200.0)))
    for at in (150.0, 120.0):
        receipt = ShardReceipt(number=0, rows=1, skipped=0, seconds=1.0, last_commit=at, replica="r")
        report.hear(ShardFinished(number=0, how=Ended.DONE, receipt=receipt))
    assert len(report.accounts()) == 2
    phases = {(phase.name, phase.lane, phase.start, phase.end) for phase in timeline.phases()}
    assert ("engine_start", "replica-0", 100.0, 105.0) in phases
    assert ("engine_start", "replica-0", 200.0, 205.0) in phases
    assert ("weights", "replica-0", 100.0, 104.0) in phases
    assert {end for name, _, _, end in phases if name == "inference"} == {150.0}


def test_rows_of_a_shard_that_did_not_end_count_until_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job is cancelled: inference took until its last rows, and the idle wait after them is not of it."""
    clocks = Clocks(monkeypatch)
    timeline = Timeline()
    report = ReportObserver(timeline)
    began = timeline.started
    report.hear(ReplicaReady(start=_start(began=began)))
    for number in range(2):
        report.hear(ShardSubmitted(number=number, why="early"))
    report.hear(Progressed(pulse=PULSE))
    clocks.go_on(50.0)
    receipt = ShardReceipt(number=0, rows=1, skipped=0, seconds=1.0, last_commit=clocks.wall, replica="r")
    report.hear(ShardFinished(number=0, how=Ended.DONE, receipt=receipt))
    for seconds, finished in ((1000.0, 2), (2600.0, 3), (300.0, 3)):
        clocks.go_on(seconds)
        report.hear(Progressed(pulse=replace(PULSE, finished=finished, total=9)))
    report.hear(ShardFinished(number=1, how=Ended.STOPPED))
    report.accounts()
    [phase] = [phase for phase in timeline.phases() if phase.name == "inference"]
    assert (phase.start - began, phase.end - began) == (5.0, 3650.0)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
@pytest.mark.parametrize("moment", range(4))
def test_a_clock_that_is_set_moves_no_phase(
    monkeypatch: pytest.MonkeyPatch, step: float, moment: int
) -> None:
    """It is set at some moment before the rows are done: what came later is by the clock as it is then."""
    clocks, set_at = Clocks(monkeypatch), iter(range(4))

    def go_on() -> None:
        clocks.go_on(60.0)
        if next(set_at) == moment:
            clocks.wall += step

    timeline = Timeline()
    report = ReportObserver(timeline)
    go_on()
    process = ScriptedProcess(name="job/replica-0", spec=SPEC, avoid=frozenset(), polls=[True])
    replica = ReplicaHandle(lane=0, process=process, slots=2)
    report.hear(ReplicaChanged.of(replica, 0.0))
    go_on()
    assert replica.poll() and replica.start is not None
    report.hear(ReplicaReady(start=replica.start))
    go_on()
    receipt = ShardReceipt(
        number=0, rows=1, skipped=0, seconds=1.0, last_commit=clocks.wall, replica=replica.name
    )
    report.hear(ShardFinished(number=0, how=Ended.DONE, receipt=receipt))
    go_on()
    [account] = report.accounts()
    began = timeline.started
    assert {phase.name: (phase.start - began, phase.end - began) for phase in timeline.phases()} == {
        "other": (0.0, 120.0),
        "engine_start": (60.0, 120.0),
        "inference": (120.0, 180.0),
    }
    assert account.moments is not None
    assert (account.moments.asked - began, account.moments.ready - began) == (60.0, 120.0)


def test_a_run_without_replicas_has_no_accounts() -> None:
    assert ReportObserver(Timeline(80.0)).accounts() == []


def test_the_log_has_lines_at_their_levels_and_progress_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LogObserver(logging.getLogger("test"))
    with caplog.at_level(logging.DEBUG):
        log.hear(Warned(line="the memory"))
        log.hear(ReplicaLogged(name="job/replica-0", severity=logging.ERROR, logger="l", message="m"))
        log.hear(ShardSubmitted(number=0, why="early"))
        log.hear(Progressed(pulse=PULSE))  # a line of it comes every few seconds
        log.hear(Progressed(pulse=PULSE, final=True))
    found = [(one.levelno, one.getMessage()) for one in caplog.records]
    assert found[:2] == [(logging.WARNING, "the memory"), (logging.ERROR, "[replica-0] l: m")]
    assert len(found) == 3
    assert "1 of 2 rows" in found[2][1]
    assert not getattr(caplog.records[2], current_job.PULSE_RECORD)


def test_those_who_listen_hear_how_far_the_job_is() -> None:
    heard: list[Pulse] = []
    with current_job.listening(heard.append):
        ListenersObserver().hear(Progressed(pulse=PULSE))
        ListenersObserver().hear(Warned(line="no pulse"))
    assert heard == [PULSE]
