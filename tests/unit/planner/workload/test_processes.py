"""Processes that count: in order, as many as there is work for, and no silence where one ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from dray.errors import ConfigError, DrayError
from dray.planner.workload.counting import count
from dray.planner.workload.encoders import Bytes
from dray.planner.workload.processes import Processes
from dray.planner.workload.worker import Setup
from dray.requests.spool.spool import encode_line

pytestmark = pytest.mark.unit


def batch(number: int, rows: int = 50) -> list[bytes]:
    """Large enough that several fill a socket's buffer."""
    body = {"prompt": [number] * 2000}
    return [encode_line(number, f"r{number}", "/v1/completions", body, 0, 1)] * rows


@pytest.mark.heavy(one_of=3)
def test_figures_come_back_in_order() -> None:
    with Processes(Setup(Bytes(), 16), most=3) as processes:
        found = list(processes.counted(batch(number) for number in range(30)))
        assert len(processes._workers) == 3
    alone = [count(batch(number, rows=1), Bytes().encoder(), 16) for number in range(30)]
    assert [one.chain[0] for one in found] == [one.chain[0] for one in alone]
    assert len({one.chain[0] for one in found}) == 30
    assert all(one.prompt_tokens.tolist() == [2000] * 50 for one in found)


def test_few_batches_start_one_process() -> None:
    with Processes(Setup(Bytes(), 16), most=8) as processes:
        list(processes.counted([batch(1)]))
        assert len(processes._workers) == 1


def test_a_process_that_ends_is_an_error() -> None:
    with Processes(Setup(Bytes(), 16), most=1) as processes:

        def batches() -> Iterator[list[bytes]]:
            for number in range(20):
                if number == 5:
                    os.kill(processes._workers[0]._process.pid, signal.SIGKILL)
                yield batch(number)

        with pytest.raises(DrayError, match="ended by itself"):
            list(processes.counted(batches()))


def test_a_tokenizer_that_fails_says_where() -> None:
    """A ConfigError: the plan counts by bytes then, and notes it. The error's words may quote a prompt."""
    broken = Setup(Bytes(), "none")  # type: ignore[arg-type]  # anything that raises there
    place = r"the tokenizer fails \(TypeError at \w+\.py:\d+(, raised in \w+\.py:\d+)?\)$"
    with Processes(broken, most=1) as processes, pytest.raises(ConfigError, match=place):
        list(processes.counted([batch(1)]))
