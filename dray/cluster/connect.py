"""Start Ray on this machine, or join a cluster that runs already."""

from __future__ import annotations

import atexit
import ipaddress
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from dray.cluster.auth import answers_anybody, close_token_file
from dray.cluster.base import (
    INSTANCE_LABELS,
    NAMESPACE,
    STABLE_RESOURCE,
    Cluster,
    ClusterInfo,
    ClusterSettings,
    Node,
)
from dray.cluster.forwarded_env import handed_down
from dray.cluster.head import MARK, Head
from dray.cluster.head_watch import HeadWatch
from dray.cluster.ray_private import enable_token_auth, keep_off_stdout, node_types
from dray.errors import ClusterError, ConfigError
from dray.imports import lasting_imports
from dray.processes import end_without_teardown

JOIN_SECONDS = 300.0
"""For Ray to start or to be joined: its own limits are lower, and this one is for what they do not see."""

LEAVE_SECONDS = 30.0
"""For a join that is still under way when the cluster is left."""

_LOOK_SECONDS = 1.0

_early: RayCluster | None = None  # a local cluster that was started before its job asked for it
_warm: Head | None = None  # the head of one, which waits to be asked


def warm_up() -> None:
    """Have the head of this process's next local cluster import Ray; it starts nothing until it is asked.

    The environment of this process stays as it is: its next cluster may be another one.
    """
    global _warm
    before = dict(os.environ)
    try:
        _prepare_environment(ClusterSettings())
        _warm = Head()
    finally:
        os.environ.clear()
        os.environ.update(before)


def cool_down() -> None:
    """End a head that was warmed up and never asked."""
    head = _warm_head()
    if head is not None:
        head.stop()


def _warm_head() -> Head | None:
    global _warm
    head, _warm = _warm, None
    return head


def start_early() -> None:
    """Begin to start a local cluster for this process's next job: Ray takes seconds that others can use."""
    global _early
    _early = RayCluster(ClusterSettings())
    _early.launch()


def join_early(modules: Sequence[str]) -> None:
    """Join the cluster that was started early, if one was, in the background.

    One of its worker processes then imports ``modules``, while this process waits for other things. It takes
    the mark of the stable node for as long, so the first shard task comes after it, and to that process.
    """
    if _early is not None:
        _early.start_and_import(modules)


def release_early() -> None:
    """Stop a cluster that was started early and never asked for."""
    global _early
    early, _early = _early, None
    if early is not None:
        early.release()


def open_cluster(settings: ClusterSettings) -> Cluster:
    """A cluster as the settings say, not started yet; or the one that was started early, where it fits."""
    global _early
    if _early is not None and settings == ClusterSettings():
        early, _early = _early, None
        return early
    return RayCluster(settings)


class RayCluster:
    """Ray in this process: our own single-node cluster, or an existing one.

    ``ray.init`` runs in a thread of its own: in the main thread it would replace Prefect's SIGTERM handler,
    which turns a cancel into a crash.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._began = time.monotonic()
        self._ready = threading.Event()
        self._info: ClusterInfo | None = None
        self._error: Exception | None = None
        self._head: Head | None = None
        self._inherited: dict[str, str] = {}
        self._modules: Sequence[str] = ()
        self._watch: HeadWatch | None = None
        self._thread = threading.Thread(target=self._join, name="dray-cluster", daemon=True)

    def launch(self) -> None:
        """Start the processes of a cluster of our own; again does nothing.

        Imports nothing of Ray's: another thread that imports it, or what it shares with Prefect, at the same
        time could find half a module.
        """
        if self._settings.address is not None or self._head is not None:
            return
        self._began = time.monotonic()
        _refuse_second()
        _prepare_environment(self._settings)
        self._inherited = handed_down()
        self._head = _warm_head() or Head()
        self._head.begin(self._settings)
        atexit.register(self.release)

    def start(self) -> None:
        """Begin in the background; again does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def start_and_import(self, modules: Sequence[str]) -> None:
        """Begin in the background, and have a worker process import ``modules`` as soon as there is one."""
        self._modules = modules
        self.start()

    def wait(self, look: Callable[[], None] = lambda: None) -> ClusterInfo:
        """Wait until the cluster can take work; what ``look``, called each second, raises ends the wait.

        Raises:
            ClusterError: it cannot, or Ray has not joined it within ``JOIN_SECONDS``.
        """
        self.start()
        deadline = time.monotonic() + JOIN_SECONDS
        while not self._ready.wait(_LOOK_SECONDS):
            look()
            if time.monotonic() > deadline:
                raise ClusterError(f"{_where(self._settings)}: not joined within {JOIN_SECONDS:.0f} s")
        if self._error is not None:
            raise self._error
        assert self._info is not None
        return self._info

    def check(self) -> None:
        """Look once whether its head lives; nothing while it is still being joined.

        Raises:
            JobPausedError: it has been gone for too long.
        """
        if self._watch is not None:
            self._watch.check()

    def leave(self) -> None:
        """Leave the cluster, and ask ours to end; again does nothing."""
        if self._thread.ident is not None:
            self._thread.join(LEAVE_SECONDS)
            if self._thread.is_alive():  # it hangs in Ray, which would wait for it at the end of the process
                _abandon_ray()
        if self._info is not None:
            if self._watch is not None and self._watch.lost:
                # At the end Ray would wait for the head until it ends the process itself, or crash.
                _abandon_ray()
            else:
                import ray

                ray.shutdown()
            self._info = self._watch = None
        if self._head is not None:
            self._head.ask_to_stop()

    def release(self) -> None:
        """Leave the cluster, and wait until the processes of ours are gone; again does nothing."""
        self.leave()
        if self._head is not None:
            self._head.stop()
            self._head = None
            atexit.unregister(self.release)

    def _join(self) -> None:
        try:
            self._info = self._joined()
            self._watch = HeadWatch(self._info.address)
        except Exception as error:  # noqa: BLE001  thread edge: ``wait`` raises it
            self._error = (
                error if isinstance(error, ClusterError | ConfigError) else _failed(self._settings, error)
            )
        self._ready.set()
        if self._info is not None and self._modules:
            _import_there(self._modules, self._info.stable_resource)

    def _joined(self) -> ClusterInfo:
        self.launch()
        if self._head is not None:
            with lasting_imports():
                import ray  # noqa: F401  beside its start
            address = self._head.wait()
            enable_token_auth()
        else:
            assert self._settings.address is not None
            address = self._settings.address
            _refuse_second()
            _prepare_environment(self._settings)
        info = _connect(address, self._settings.environment, self._began)
        if self._head is not None:
            return replace(info, own=True, inherited=self._inherited)
        _leave_if_open(address, info.address)
        return replace(info, coming=node_types())


def _import_there(modules: Sequence[str], resource: str) -> None:
    import ray

    options = {"num_cpus": 0, "max_retries": 0, "resources": {resource: MARK}}
    ray.remote(_import_all).options(name="imports", **options).remote(modules)


def _import_all(modules: Sequence[str]) -> None:
    """In a worker process. What fails here fails again in the shard task, which says so."""
    with suppress(ImportError), lasting_imports():
        for module in modules:
            import_module(module)


def _abandon_ray() -> None:
    """End this process without Ray's own end, which waits for what does not come."""
    ray = sys.modules.get("ray")
    if ray is not None:
        atexit.unregister(ray.shutdown)
    end_without_teardown()


def _refuse_second() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        raise ClusterError(
            "this process is connected to a Ray cluster already; disconnect first (ray.shutdown())"
        )


def _failed(settings: ClusterSettings, error: Exception) -> ClusterError:
    reason = (str(error).splitlines() or [""])[0][:300]
    return ClusterError(f"could not join {_where(settings)}: {type(error).__name__}: {reason}")


def _where(settings: ClusterSettings) -> str:
    return "the Ray of this machine" if settings.address is None else f"the Ray cluster at {settings.address}"


def _connect(address: str, environment: dict[str, str], began: float) -> ClusterInfo:
    import ray

    keep_off_stdout()
    ray.init(
        address=address,
        namespace=NAMESPACE,
        logging_level=logging.ERROR,  # what matters is raised; the rest would break up the run's lines
        log_to_driver=False,  # worker output may quote prompts; replicas hand over their log instead
        runtime_env={"env_vars": environment} if environment else None,
    )
    nodes, resource = live_nodes()
    return ClusterInfo(
        address=ray.get_runtime_context().gcs_address,
        nodes=nodes,
        seconds=time.monotonic() - began,
        stable_resource=resource,
    )


def _prepare_environment(settings: ClusterSettings) -> None:
    """Ray reads these at import and at init; its worker processes inherit them."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if settings.address is None:
        # Ray starts workers at nice 15; engines here must not wait behind everything else on the machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Never an open port: a token, in ~/.ray/auth_token where the environment names no other.
        close_token_file()
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.pop("RAY_ADDRESS", None)
        return
    if settings.auth_token is not None:
        enable_token_auth(settings.auth_token)
    _refuse_open_cluster(settings.address)


def _refuse_open_cluster(address: str) -> None:
    """Ray's API runs any code it is sent: without a token it may listen on loopback only."""
    host = _host(address)
    if os.environ.get("RAY_AUTH_MODE") == "token" or host in ("auto", "local") or _is_loopback(host):
        return
    raise _open(address)


def _leave_if_open(given: str, found: str) -> None:
    """The cluster itself has the last word: ours may be the only side that wants a token."""
    if _is_loopback(_host(given)) or _is_loopback(_host(found)) or not answers_anybody(found):
        return
    import ray

    ray.shutdown()
    raise _open(given)


def _host(address: str) -> str:
    return address.removeprefix("ray://").rsplit(":", 1)[0]


def _open(address: str) -> ConfigError:
    return ConfigError(
        f"the Ray cluster at {address} is open: no token and not a loopback address. "
        "Start it with RAY_AUTH_MODE=token, and set RAY_AUTH_MODE and RAY_AUTH_TOKEN here, or use a block"
    )


def _is_loopback(host: str) -> bool:
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address).split("%")[0]).is_loopback for address in found)


def live_nodes() -> tuple[tuple[Node, ...], str]:
    """The nodes that live now, and the resource that marks stable ones: the head's own where none is."""
    import ray

    return _nodes(ray.nodes())


def _instance(node: dict[str, Any]) -> str:
    """The type of instance of a node, as a label of Ray's says it."""
    labels = node.get("Labels") or {}
    return next((labels[name] for name in INSTANCE_LABELS if labels.get(name)), "")


def _nodes(listed: list[dict[str, Any]]) -> tuple[tuple[Node, ...], str]:
    alive = [node for node in listed if node["Alive"]]
    marked = any(STABLE_RESOURCE in node["Resources"] for node in alive)
    resource = STABLE_RESOURCE if marked else "node:__internal_head__"
    nodes = tuple(
        Node(
            node_id=node["NodeID"],
            host=node["NodeManagerHostname"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            stable=resource in node["Resources"],
            address=node.get("NodeManagerAddress", ""),
            port=node.get("NodeManagerPort", 0),
            memory=node["Resources"].get("memory", 0.0),
            instance=_instance(node),
            spot=(node.get("Labels") or {}).get("ray.io/market-type") == "spot",
        )
        for node in alive
    )
    return nodes, resource
