"""Shard tasks that end together, under plain Ray and under Prefect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from prefect.states import Crashed, Failed

from dray.driver.executor import TaskEnd
from dray.driver.ray_executor import RayExecutor
from dray.errors import JobFailedError, raised_noted
from dray.shard.task import Ended, TaskResult
from tasks.prefect_executor import PrefectExecutor

pytestmark = pytest.mark.unit

TASKS = 2000
STOPPED = TaskResult(how=Ended.STOPPED, message="")


class Waits:
    """Ray's ``wait``, where the even numbers have ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timeouts: list[float] = []
        monkeypatch.setattr(ray, "wait", self.wait)
        monkeypatch.setattr(ray, "get", lambda reference: STOPPED)

    def wait(
        self, references: Sequence[int], *, num_returns: int, timeout: float
    ) -> tuple[list[int], list[int]]:
        assert 0 < num_returns <= len(references)
        self.timeouts.append(timeout)
        ended = [one for one in references if one % 2 == 0][:num_returns]
        return ended, [one for one in references if one not in set(ended)]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


def _of_prefect(numbers: Sequence[int]) -> PrefectExecutor:
    executor = PrefectExecutor()
    for number in numbers:
        future: Any = SimpleNamespace(wait=lambda: None, state=Crashed(), task_run_id=number)
        executor._running[number] = number
        executor._futures[number] = future
    return executor


def _of_ray(numbers: Sequence[int]) -> RayExecutor:
    executor = RayExecutor()
    executor._running = {number: number for number in numbers}
    return executor


@pytest.mark.parametrize("made", [_of_ray, _of_prefect])
def test_all_tasks_that_have_ended_are_taken_at_once(made: Any, waits: Waits) -> None:
    """A cancelled job of 2,000 tasks took as many steps of its driver, each with a look at everything."""
    executor = made(range(TASKS))
    assert sorted(end.number for end in executor.poll(0.2)) == list(range(0, TASKS, 2))
    assert waits.timeouts == [0.2, 0]
    assert executor.poll(0.2) == []
    assert waits.timeouts == [0.2, 0, 0.2]
    assert made([0]).poll(0.2)[0].number == 0


# As Ray 2.60 says them, shortened.
UNPICKLED = """System error: No module named 'tasks'
traceback: Traceback (most recent call last):
  File "ray/_private/serialization.py", line 366, in _deserialize_pickle5_data
    obj = pickle.loads(in_band)
ModuleNotFoundError: No module named 'tasks'
"""


def _end_of(made: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> TaskEnd:
    def get(reference: int) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    (end,) = made([0]).poll(0.2)
    return end  # type: ignore[no-any-return]


@pytest.mark.parametrize("made", [_of_ray, _of_prefect])
def test_what_a_node_cannot_import_ends_the_job_by_its_name(
    made: Any, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a worker process that died four times."""
    cause = ray.exceptions.RaySystemError(UNPICKLED)
    end = _end_of(made, ray.exceptions.RayTaskError("shard", UNPICKLED, cause), monkeypatch)
    assert not end.crashed
    assert isinstance(end.error, JobFailedError)
    assert "cannot import what the driver has (ModuleNotFoundError: No module named 'tasks')" in str(
        end.error
    )


@pytest.mark.parametrize("made", [_of_ray, _of_prefect])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ray.exceptions.WorkerCrashedError(), None),
        (ray.exceptions.NodeDiedError("node"), None),
        (ray.exceptions.OutOfMemoryError("killed"), "OutOfMemoryError"),
        (ray.exceptions.RuntimeEnvSetupError("no agent"), "RuntimeEnvSetupError"),
    ],
)
def test_a_task_that_did_not_end_by_itself_runs_again_and_says_of_what(
    made: Any, error: Exception, cause: str | None, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _end_of(made, error, monkeypatch) == TaskEnd(number=0, crashed=True, cause=cause)


def _fault() -> TypeError:
    """As it comes from another process: without its traceback."""
    with pytest.raises(TypeError) as failed, raised_noted():
        raise TypeError("a prompt")
    return failed.value.with_traceback(None)


def test_a_fault_in_a_shard_task_is_named_with_its_place(
    waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_prefect = _of_prefect([0])
    of_prefect._futures[0].state = Failed(data=_fault())
    ends = [
        _end_of(_of_ray, ray.exceptions.RayTaskError("shard", "its traceback", _fault()), monkeypatch),
        _ended(of_prefect, monkeypatch),
    ]
    for end in ends:
        assert re.fullmatch(
            r"shard 0 failed: TypeError at \S+, raised in test_executors\.py:\d+", str(end.error)
        )


def _ended(executor: PrefectExecutor, monkeypatch: pytest.MonkeyPatch) -> TaskEnd:
    monkeypatch.setattr(ray, "get", lambda reference: None)
    (end,) = executor.poll(0.2)
    return end


@pytest.mark.parametrize("made", [_of_ray, _of_prefect])
def test_a_task_that_cannot_be_cancelled_hides_no_error_of_the_job(
    made: Any, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor is closed while the error that ended the job is on its way to the user."""
    asked: list[int] = []

    def cancel(reference: int, force: bool = False) -> None:
        asked.append(reference)
        raise ray.exceptions.RaySystemError("the head is away")

    closed: list[object] = []
    monkeypatch.setattr(ray, "cancel", cancel)
    executor = made(range(4))
    executor._runner = SimpleNamespace(__exit__=lambda *_: closed.append(_))
    executor.close()
    assert asked == [1, 3]
    assert len(closed) == (1 if made is _of_prefect else 0)
