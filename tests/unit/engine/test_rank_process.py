"""What a rank does whose step failed: a fake of vLLM's ``WorkerProc``, which carries out calls like it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from dray.engine.vllm_adapter.core.rank_process import _report_failures
from dray.weights.loading.ranks import Ranks, ranks_heard

pytestmark = pytest.mark.unit


CALLS = [("execute_model", 0), ("add_lora", None), (b"pickle", None), ("sample_tokens", 1)]
"""Methods, each with the rank whose answer vLLM wants; None for all of them."""


class Ended(BaseException):
    """The process would have ended."""


class Worker:
    """Answers calls like vLLM's (v1/executor/multiproc_executor.py)."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.reported: list[Any] = []

    def _execute_worker_rpc(self, call: tuple[Any, ...]) -> None:
        _, arguments, _, reporter = call
        try:
            output = arguments[0]()
        except Exception as error:  # noqa: BLE001
            output = error
        if reporter is None or self.rank == reporter:
            self.handle_output(output)

    def handle_output(self, output: Any) -> None:
        self.reported.append(output)


@pytest.fixture
def worker() -> type[Worker]:
    class Reporting(Worker):
        pass

    _report_failures(Reporting)
    return Reporting


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    with ranks_heard() as ranks:
        yield ranks
    ranks.close()


def fails() -> None:
    raise MemoryError("secret words")


def succeeds() -> str:
    return "fine"


def test_a_rank_that_does_not_report_ends_with_its_reason(worker: type[Worker], heard: Ranks) -> None:
    rank = worker(1)
    with pytest.raises(Ended):
        rank._execute_worker_rpc(("execute_model", (fails,), {}, 0))
    assert rank.reported == []
    death = heard.death()
    assert death is not None
    assert (str(death), death.oom) == ("MemoryError in rank 1", True)


def test_the_rank_that_reports_goes_on_and_its_reason_is_known(worker: type[Worker], heard: Ranks) -> None:
    """vLLM's V1 runner may read the next result first, and fail with a KeyError."""
    rank = worker(2)
    rank._execute_worker_rpc(("execute_model", (fails,), {}, 2))
    assert [type(one) for one in rank.reported] == [MemoryError]
    death = heard.death()
    assert death is not None
    assert death.oom


def test_of_all_ranks_that_are_asked_the_first_reports_and_others_end(
    worker: type[Worker], heard: Ranks
) -> None:
    first, second = worker(0), worker(1)
    first._execute_worker_rpc(("initialize_from_config", (fails,), {}, None))
    with pytest.raises(Ended):
        second._execute_worker_rpc(("initialize_from_config", (fails,), {}, None))
    assert len(first.reported) == len(second.reported) == 1
    death = heard.death()
    assert death is not None
    assert str(death) == "MemoryError: secret words"  # at the start, there is no request yet


def test_other_results_are_handed_out_as_before(worker: type[Worker], heard: Ranks) -> None:
    first, second = worker(0), worker(1)
    for rank in first, second:
        for method, reporter in CALLS:
            rank._execute_worker_rpc((method, (succeeds,), {}, reporter))
        rank._execute_worker_rpc(("add_lora", (fails,), {}, None))  # the caller's to judge
    assert len(first.reported) == len(second.reported) == 4
    assert heard.death() is None
