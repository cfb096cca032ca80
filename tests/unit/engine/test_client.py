"""The client in front of a Ray actor: numbered feeds, and Ray's errors in dray's words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dray.engine.client import RayReplica
from dray.engine.ray_errors import ray_errors
from dray.errors import (
    ConfigError,
    DrayError,
    EngineDeadError,
    EngineError,
    NoRoomError,
    NotImportedError,
    ReplicaLostError,
)

pytestmark = pytest.mark.unit


def test_feeds_are_numbered_by_session() -> None:
    calls: list[tuple[Any, ...]] = []
    actor = SimpleNamespace(feed=SimpleNamespace(remote=lambda *call: calls.append(call)))
    replica = RayReplica("r", actor)
    replica.feed("a", [b"1"])
    replica.feed("b", [b"2"], True)
    replica.feed("a", [b"3"], True)
    assert calls == [("a", [b"1"], False, 0), ("b", [b"2"], True, 0), ("a", [b"3"], True, 1)]


def test_a_head_that_does_not_say_where_a_replica_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's control store is overloaded: the replica may live, and the shard task asks again."""
    import ray

    def late(name: str, namespace: str) -> None:
        raise ray.exceptions.GetTimeoutError("There was timeout in getting the actor handle")

    monkeypatch.setattr(ray, "get_actor", late)
    with pytest.raises(EngineError, match="r7"):
        RayReplica.find("r7", "dray")


def test_rays_errors_become_drays() -> None:
    from ray import exceptions as ray

    cases: list[tuple[Exception, type[DrayError]]] = [
        (ray.RayActorError(), ReplicaLostError),
        (ray.ActorUnavailableError("gone", None), ReplicaLostError),
        (ray.ObjectLostError("00", None, ""), ReplicaLostError),
        (ray.NodeDiedError("gone"), ReplicaLostError),
        (ray.OutOfMemoryError("gone"), ReplicaLostError),
        (ray.RayTaskError("f", "trace", ConfigError("no")), ConfigError),
        (ray.RayTaskError("f", "trace", ValueError("a prompt")), EngineDeadError),
        (ray.RayTaskError("f", "a prompt", ray.OutOfDiskError("a prompt")), NoRoomError),
        (ray.ObjectStoreFullError("a prompt"), NoRoomError),
    ]
    for foreign, ours in cases:
        with pytest.raises(ours) as caught, ray_errors("r7"):
            raise foreign
        assert "prompt" not in str(caught.value)
        assert "r7" in str(caught.value) or ours is ConfigError
        unsure = isinstance(caught.value, ReplicaLostError) and caught.value.unsure
        assert unsure is isinstance(foreign, ray.ActorUnavailableError)  # it may live


@pytest.mark.parametrize(
    "why",
    [
        "ModuleNotFoundError: No module named 'dray'",
        "AttributeError: Can't get attribute 'Rank' on <module 'dray.engine.protocol'>",
        "TypeError: EngineSpec.__init__() got an unexpected keyword argument 'rank'",
    ],
)
def test_a_node_without_dray_or_with_an_older_one_is_told_of_as_such(why: str) -> None:
    from ray import exceptions as ray

    told = f"Traceback (most recent call last):\nRuntimeError: Replica failed to import\n\n{why}\n"
    failed = ray.ActorDiedError(ray.RayTaskError("__init__", told, RuntimeError("x"), "ray::r7", 1, "ip"))
    with pytest.raises(NotImportedError) as caught, ray_errors("r7"):
        raise failed
    assert f"the node of replica r7 cannot import what the driver has ({why})" in str(caught.value)
    assert "give the nodes the driver's version of dray" in str(caught.value)
    assert caught.value.why == why
