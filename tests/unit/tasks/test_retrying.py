"""Which failures of a shard task are worth another try, and that exactly one layer tries."""

from __future__ import annotations

import inspect

import pytest
from prefect.states import Completed, Failed

from dray.driver.ray_executor import stable_options
from dray.errors import (
    CancelledError,
    FencedError,
    InterruptedShardError,
    JobFailedError,
    JobPausedError,
    ReplicaLostError,
)
from tasks.infer_shard import infer_shard
from tasks.retrying import RETRIES, worth_retrying

pytestmark = pytest.mark.unit

NOT_RETRIED = (ReplicaLostError, FencedError, CancelledError, JobFailedError, JobPausedError)


def test_an_interrupted_shard_is_tried_again() -> None:
    assert worth_retrying(None, None, Failed(data=InterruptedShardError("SPOT: the node was taken back")))


@pytest.mark.parametrize("kind", [*NOT_RETRIED, ValueError])
def test_nothing_else_is(kind: type[Exception]) -> None:
    """The table of causes decides in the task; what it lets through is final."""
    assert not worth_retrying(None, None, Failed(data=kind("x")))


def test_no_failure_is_no_reason() -> None:
    assert not worth_retrying(None, None, Completed())


def test_prefect_takes_it_for_what_it_is() -> None:
    assert inspect.isfunction(infer_shard.retry_condition_fn)  # anything else turns retries off in silence
    assert infer_shard.retry_condition_fn is worth_retrying
    delay: object = infer_shard.retry_delay_seconds  # Prefect's annotation leaves the plain number out
    assert (infer_shard.retries, delay) == (RETRIES, 0)
    assert infer_shard.persist_result is False


@pytest.mark.parametrize("resource", ["dray_stable", "node:__internal_head__"])
def test_ray_itself_tries_nothing_again(resource: str) -> None:
    options = stable_options(resource)
    assert options["max_retries"] == 0
    assert options["resources"] == {resource: 0.001}  # a node marked with 1, as users do, holds a thousand
