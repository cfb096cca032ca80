"""The one place that touches Ray's private modules; tests fail when Ray renames what is used here."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dray.cluster import waiting_agent
from dray.cluster.base import STABLE_RESOURCE, NodeType

_LOOK_MS = 20
_RAYS_PATIENCE_MS = 10_000  # Ray's own: 10 looks, one each second
_ALIVE = 0  # of GcsNodeInfo.GcsNodeState
_DRAINING = 3  # of NodeSnapshot.State
_AGENTS = ("dashboard_agent", "runtime_env_agent")  # as Ray names these components


def enable_token_auth(token: str | None) -> None:
    """Turn token authentication on for this process and its children, also after Ray was imported.

    Ray reads RAY_AUTH_MODE at import and caches it: the variable alone would come too late, and the head's
    processes, which see the variable, would then refuse to start without a token.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    if token is not None:
        os.environ["RAY_AUTH_TOKEN"] = token
    _read_auth()


def auth_variables() -> dict[str, str | None]:
    """What :func:`enable_token_auth` changes in the environment, as it is now."""
    return {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}


def restore_auth(before: Mapping[str, str | None]) -> None:
    """Set these variables back, and have Ray forget the token: it would show it to the next cluster."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "ray._raylet" in sys.modules:
        _read_auth()


def _read_auth() -> None:
    """Have Ray read mode and token from the environment again."""
    import ray  # noqa: F401  the package before its part: two threads importing both could each wait for the other
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, no stubs

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def let_main_thread_alone_start_ray() -> None:
    """Have Ray's calls in other threads fail, from now on, where this process has no cluster.

    Ray starts a cluster for such a call, and nothing stops it. A thread of a job may outlast the job's stop
    and its cluster. The main thread is the user's, who may use Ray before or after a job.
    """
    from ray._private import auto_init_hook

    if auto_init_hook.enable_auto_connect:
        auto_init_hook.enable_auto_connect = _InMainThread()


class _InMainThread:
    def __bool__(self) -> bool:
        return threading.current_thread() is threading.main_thread()


def keep_off_stdout() -> None:
    """Drop what Ray prints about dead workers: it goes to stdout, whatever ``log_to_driver`` says.

    The replica pool and the shard tasks report deaths in the run's log; stdout belongs to ``--json``.
    """
    from ray._private import worker

    worker.print_to_stdstream = _dropped


def _dropped(data: object, ignore_prefix: bool) -> None:
    pass


class Service(StrEnum):
    """A process that Ray starts beside a node's daemon, by the method of Ray's node that starts it."""

    AUTOSCALER = "start_monitor"
    LOG_MONITOR = "start_log_monitor"
    DASHBOARD = "start_api_server"


def start_without(services: Collection[Service]) -> None:
    """Have the Ray nodes that this process starts from now on do without these services.

    Each is a Python process: 0.5 to 1 s of a core at its start, and about 100 MB (Ray 2.60).

    Raises:
        AttributeError: Ray starts such a service by another method now.
    """
    from ray._private.node import Node

    for service in services:
        getattr(Node, service.value)
        setattr(Node, service.value, _not_started)


def _not_started(node: Any, **_: object) -> None:
    node._webui_url = ""  # of the dashboard: Ray reads it when it connects


def agents_on_demand() -> None:
    """Have the Ray nodes that this process starts from now on start their agents only where they need them.

    Each is a Python process: 0.5 to 1 s of a core, before which the node starts no worker (Ray 2.60).

    Raises:
        AttributeError: Ray starts its agents in another way now.
    """
    from ray._private import services, utils

    python = services._build_python_executable_command_memory_profileable

    def waiting(component: str, *arguments: Any, **options: Any) -> list[str]:
        command: list[str] = python(component, *arguments, **options)
        if component not in _AGENTS:
            return command
        return [sys.executable, "-I", "-S", waiting_agent.__file__, *command]

    services._build_python_executable_command_memory_profileable = waiting
    # Whether an agent can serve metrics: to learn it, Ray imports what that takes, for 0.4 s of a core.
    getattr(utils, "get_dashboard_dependency_error")  # noqa: B009  an error where Ray has none now
    setattr(utils, "get_dashboard_dependency_error", lambda: None)  # noqa: B010


def look_often() -> None:
    """Have this process, and Ray's that it starts, look more often for what is about to be there.

    Ray's first look for a new node's sockets and for its entry comes too early, and the next a second later.

    Raises:
        AttributeError: Ray looks in another way now.
    """
    os.environ.setdefault("RAY_raylet_client_connect_timeout_milliseconds", str(_LOOK_MS))
    os.environ.setdefault("RAY_raylet_client_num_connect_attempts", str(_RAYS_PATIENCE_MS // _LOOK_MS))
    from ray._private import services

    get_node = services.get_node

    def after_entry(gcs_address: str, node_id: str) -> Any:
        _await_entry(gcs_address)
        return get_node(gcs_address, node_id)

    setattr(services, "get_node", after_entry)  # noqa: B010


def _await_entry(gcs_address: str) -> None:
    """Wait for a while until the cluster has a node: what follows waits longer, and says what is wrong."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, no stubs

    client, until = GcsClient(address=gcs_address), time.monotonic() + _RAYS_PATIENCE_MS / 1000
    while not client.get_all_node_info() and time.monotonic() < until:
        time.sleep(_LOOK_MS / 1000)


def drain(node_id: str, deadline: float) -> bool:
    """Tell Ray that a node is being taken back at ``deadline`` (seconds since 1970): it gets nothing new.

    What runs there goes on. Returns whether Ray accepted; a node that is gone already is no error.
    """
    from ray._private.worker import global_worker
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    try:
        accepted, _ = global_worker.gcs_client.drain_node(node_id, reason, "dray", int(deadline * 1000))
    except Exception:  # noqa: BLE001  whatever its client raises: a hint to Ray must not end a job
        return False
    return bool(accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNode:
    """A live node, as the head of a cluster tells a process that has not joined it.

    ``marked``: it has some of the resource of stable nodes.
    """

    node_id: str
    address: str
    host: str
    head: bool
    marked: bool
    draining: bool
    resources: dict[str, float]


def nodes_at(address: str) -> list[FoundNode]:
    """The live nodes of the cluster whose head is at ``address``, without joining it.

    Raises what Ray's client raises where the head does not answer, or wants another token.
    """
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, no stubs

    found = GcsClient(address=canonicalize_bootstrap_address(address)).get_all_node_info()
    return [
        FoundNode(
            node_id=node_id.hex(),
            address=one.node_manager_address,
            host=one.node_manager_hostname,
            head=bool(one.is_head_node),
            marked=STABLE_RESOURCE in one.resources_total,
            draining=one.state_snapshot.state == _DRAINING,
            resources={
                name: one.resources_total[name] for name in ("CPU", "GPU") if name in one.resources_total
            },
        )
        for node_id, one in found.items()
        if one.state == _ALIVE
    ]


def nodes_here(address: str) -> set[str]:
    """The ids of those nodes of the cluster whose head is at ``address`` that run on this machine."""
    here = node_ids_here()
    return {one.node_id for one in nodes_at(address) if one.node_id in here} if here else set()


def node_ids_here() -> set[str]:
    """The ids of the nodes that run on this machine, of all clusters."""
    from ray._private.services import find_node_ids

    return set(find_node_ids())


def starts_here(address: str) -> bool:
    """Whether a node of this machine is on its way into the cluster at ``address`` (host:port).

    It is told by the processes of this machine: a ``ray start``, or a node's daemon, which names the address.
    """
    from ray._private import services

    commands = [one.info["cmdline"] or [] for one in services.psutil.process_iter(["cmdline"])]
    return any(
        _starts_node(words) and any(one == address or one.endswith(f"={address}") for one in words)
        for words in commands
    )


def _starts_node(words: Sequence[str]) -> bool:
    names = {os.path.basename(one) for one in words}  # noqa: PTH119  of all words of all processes
    return "raylet" in names or ("start" in names and not names.isdisjoint(("ray", "ray.scripts.scripts")))


def draining() -> dict[str, float]:
    """The nodes that are being drained, and until when (seconds since 1970; 0 where Ray has no deadline)."""
    from ray._private.state import state

    return {node: deadline / 1000.0 for node, deadline in state.get_draining_nodes().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorDeath:
    """What Ray knows of a dead actor. ``with_node``: its node went, None where Ray does not say."""

    with_node: bool | None
    preempted: bool
    oom: bool


def death_of(actor_id: str) -> ActorDeath | None:
    """How an actor died; None while Ray does not know that it did."""
    from ray._private.state import actors
    from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo

    found = actors(actor_id)
    if not found or found.get("State") != "DEAD":
        return None
    cause = found["DeathCause"]
    died = cause.actor_died_error_context
    return ActorDeath(
        with_node={
            ActorDiedErrorContext.Reason.NODE_DIED: True,
            ActorDiedErrorContext.Reason.WORKER_DIED: False,
        }.get(died.reason),
        preempted=died.node_death_info.reason == NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED,
        oom=cause.HasField("oom_context"),
    )


def node_of(actor_id: str) -> str | None:
    """The node that an actor is on, or was; None while it has none.

    Until an actor has a process, Ray gives as its address the node that was asked to take it. One that dies
    with that node was about to start there.
    """
    from ray._private.state import actors

    found = actors(actor_id)
    if not found:
        return None
    if not found["Pid"]:
        death = death_of(actor_id)
        if death is None or not death.with_node:
            return None
    node: str = found["Address"]["NodeID"]
    return node if node and set(node) != {"f"} else None  # Ray's nil


def nodes_of_group(group: Any) -> list[str]:
    """The nodes that a placement group's places are on; none while it has none."""
    from ray.util.placement_group import placement_group_table

    found = placement_group_table(group).get("bundles_to_node_id") or {}
    return [node for node in found.values() if node]


def free_resources() -> dict[str, dict[str, float]]:
    """What is free on each live node, by the node's id and the resource's name."""
    from ray._private.state import state

    return dict(state.available_resources_per_node())


def node_types() -> tuple[NodeType, ...] | None:
    """The nodes that an autoscaler may start: none where the cluster has no autoscaler, None where unknown.

    Some autoscalers leave what they may start with the cluster. Ray's first one leaves a status: where that
    names each node by its id, nodes come and go by hand.
    """
    from ray._private.state import state
    from ray._private.worker import global_worker

    try:
        config = state.get_cluster_config()
        status = global_worker.gcs_client.internal_kv_get(b"__autoscaling_status", None)
    except Exception:  # noqa: BLE001  whatever its client raises: a cluster without an autoscaler works, too
        return None
    if config is None:
        return () if _is_by_hand(status) else None
    return tuple(
        NodeType(
            name=group.name,
            cpus=float(group.resources.get("CPU", 0)),
            gpus=float(group.resources.get("GPU", 0)),
            most=group.max_count,
        )
        for group in config.node_group_configs
        if group.max_count
    )


def _is_by_hand(status: bytes | None) -> bool:
    try:
        active = json.loads(status or b"")["autoscaler_report"]["active_nodes"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(active) and all(re.fullmatch(r"node_[0-9a-f]{56}", name) for name in active)


def refused_by_autoscaler() -> list[dict[str, float]]:
    """Amounts that were asked for, and that the cluster's autoscaler says none of its nodes can have."""
    from ray._private.worker import global_worker
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    reply = GetClusterStatusReply()
    reply.ParseFromString(global_worker.gcs_client.get_cluster_status())
    return [dict(one.resources_bundle) for one in reply.autoscaling_state.infeasible_resource_requests]
