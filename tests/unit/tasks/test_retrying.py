"""Which failures of a shard task are worth another try, and that exactly one layer tries."""

from __future__ import annotations

import inspect

import pytest
from prefect.states import Completed, Failed

from dray.cluster import ClusterInfo
from dray.errors import (
    CancelledError,
    ConfigError,
    DrayError,
    EngineDeadError,
    EngineStartError,
    FencedError,
    JobFailedError,
    ReplicaLostError,
    StoreFatalError,
    StoreTransientError,
    StoreUnreachableError,
)
from tasks.infer import _stable
from tasks.infer_shard import infer_shard
from tasks.retrying import DELAYS, RETRIES, worth_retrying

pytestmark = pytest.mark.unit

RETRIED = (ReplicaLostError, EngineDeadError, StoreTransientError, StoreUnreachableError)
NOT_RETRIED = (
    FencedError,
    CancelledError,
    ConfigError,
    EngineStartError,
    JobFailedError,
    StoreFatalError,
)


@pytest.mark.parametrize("kind", RETRIED)
def test_what_comes_back_is_tried_again(kind: type[DrayError]) -> None:
    assert worth_retrying(None, None, Failed(data=kind("x")))


@pytest.mark.parametrize("kind", [*NOT_RETRIED, ValueError])
def test_nothing_else_is(kind: type[Exception]) -> None:
    assert not worth_retrying(None, None, Failed(data=kind("x")))


def test_no_failure_is_no_reason() -> None:
    assert not worth_retrying(None, None, Completed())


def test_prefect_takes_it_for_what_it_is() -> None:
    assert inspect.isfunction(infer_shard.retry_condition_fn)  # anything else turns retries off in silence
    assert infer_shard.retry_condition_fn is worth_retrying
    assert (infer_shard.retries, infer_shard.retry_delay_seconds) == (RETRIES, DELAYS)
    assert len(DELAYS) == RETRIES
    assert infer_shard.persist_result is False


@pytest.mark.parametrize("resource", ["dray_stable", "node:__internal_head__"])
def test_ray_itself_tries_nothing_again(resource: str) -> None:
    info = ClusterInfo(address="a", nodes=(), seconds=0.0, stable_resource=resource)
    options = _stable(info)
    assert options["max_retries"] == 0
    assert list(options["resources"]) == [resource]
