"""Join the Ray cluster that a provider starts or knows of, and leave it."""

from __future__ import annotations

import atexit
import logging
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module

from dray.cluster.auth import answers_strangers, open_cluster_error
from dray.cluster.base import NAMESPACE, ClusterInfo, ClusterSettings, Node
from dray.cluster.forwarded_env import handed_down
from dray.cluster.head import MARK
from dray.cluster.head_watch import HeadWatch
from dray.cluster.member import nodes_joined
from dray.cluster.own_environment import prepare_environment
from dray.cluster.own_node import OwnNode, join_as_node, versions_told
from dray.cluster.providers.existing import ExistingProvider
from dray.cluster.providers.local import LocalProvider
from dray.cluster.providers.protocol import Access, Provider
from dray.cluster.providers.standing import StandingProvider
from dray.cluster.ray_job import own_job_config, show_no_secret_of_the_command
from dray.cluster.ray_nodes import await_workers, leaving, live_nodes, marked, unjoined
from dray.cluster.ray_private import (
    auth_variables,
    enable_token_auth,
    keep_off_stdout,
    let_main_thread_alone_start_ray,
    node_types,
    restore_auth,
)
from dray.cluster.runtime_env import runtime_env_of
from dray.errors import ClusterError, ConfigError, DrayError, first_line
from dray.imports import lasting_imports
from dray.processes import end_without_teardown

JOIN_SECONDS = 300.0
"""For Ray to start or to be joined: its own limits are lower, and this one is for what they do not see."""

LEAVE_SECONDS = 30.0
"""For a join that is still under way when the cluster is left."""

KEEP_SECONDS = 60.0
"""Between two calls that tell a provider that the job lives."""

_LOOK_SECONDS = 1.0
_SAY_SECONDS = 30.0
_LOGGER = logging.getLogger("dray.cluster")


def provider_of(settings: ClusterSettings) -> Provider:
    """Who starts the cluster of these settings, or knows of it."""
    if settings.provider is not None and settings.standing:
        return StandingProvider(settings.provider.open())
    if settings.provider is not None:
        return settings.provider.open(secrets.token_hex(3))
    if settings.address is not None:
        return ExistingProvider(settings.address, settings.auth_token)
    return LocalProvider(settings)


class RayCluster:
    """The Ray cluster of a provider, joined by this process.

    ``ray.init`` runs in a thread of its own: in the main thread it would replace Prefect's SIGTERM handler,
    which turns a cancel into a crash.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self.provider = provider_of(settings)
        self._launched = False
        self._began = time.monotonic()
        self._joining: float | None = None  # since when Ray is asked
        self._ready = threading.Event()
        self._leaving = threading.Event()
        self._info: ClusterInfo | None = None
        self._error: Exception | None = None
        self._inherited: dict[str, str] = {}
        self._auth: dict[str, str | None] = {}  # of this process, before it had this cluster's token
        self._modules: Sequence[str] = ()
        self._watch: HeadWatch | None = None
        self._node: OwnNode | None = None  # that this machine is, in a rented cluster
        self._hears = False  # SIGTERM, before Ray does
        self._releasing: threading.Thread | None = None
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._join, name="dray-cluster", daemon=True)

    @property
    def rented(self) -> Provider | None:
        """Its provider, where that rents machines for the job."""
        settings = self._settings
        return None if settings.provider is None or settings.standing else self.provider

    def launch(self) -> None:
        """Have its provider start it; again does nothing.

        For a cluster of our own it imports nothing of Ray's: another thread that imports it, or what it
        shares with Prefect, at the same time could find half a module.
        """
        if self._launched:
            return
        self._began = time.monotonic()
        self._auth = auth_variables()
        prepare_environment(self._settings)
        self._inherited = handed_down()
        self._launched = True
        if self._settings.address is None:
            atexit.register(self.release)
        self._refuse_left()
        self.provider.start()
        if self._settings.provider is not None:
            threading.Thread(target=self._keep, name="dray-keep", daemon=True).start()

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
            ClusterError: it cannot, or Ray has not joined it within ``JOIN_SECONDS``. A provider has a limit
                of its own for the head to come.
        """
        self.start()
        said = False
        while not self._ready.wait(_LOOK_SECONDS):
            look()
            seconds = 0.0 if self._joining is None else time.monotonic() - self._joining
            if seconds > JOIN_SECONDS:
                raise ClusterError(
                    f"{self.provider.where}: not joined within {JOIN_SECONDS:.0f} s; is its head up, "
                    "does this machine reach it, and is the port that of `ray start --head --port`?"
                )
            if seconds > _SAY_SECONDS and not said:
                said = True
                _LOGGER.warning(
                    "%s: not joined yet after %.0f s; dray tries for %.0f s in all",
                    self.provider.where, seconds, JOIN_SECONDS,
                )  # fmt: skip
        self._hear_sigterm()
        if self._error is not None:
            raise self._error
        assert self._info is not None
        return self._info

    def check(self) -> None:
        """Look once whether its head lives; nothing while it is still being joined.

        Raises:
            JobPausedError: it has been gone for too long.
        """
        if self._ready.is_set():
            self._hear_sigterm()
        if self._watch is not None:
            self._watch.check()

    def _hear_sigterm(self) -> None:
        """Put this process's own handler anew: Ray's came before it, and prints a stack first.

        Only the main thread may. In a flow it calls ``check`` alone.
        """
        if self._hears or threading.current_thread() is not threading.main_thread():
            return
        self._hears = True
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)

    def leave(self) -> None:
        """Leave the cluster, and have its provider let go of what it made; again does nothing.

        One of our own is released beside: else a process that runs job after job would keep them all.
        """
        self._leave()
        with self._guard:
            if self._launched and self.provider.own and self._releasing is None:
                self._releasing = threading.Thread(target=self._release, name="dray-release", daemon=True)
                self._releasing.start()

    def _leave(self) -> None:
        self._leaving.set()
        if self._settings.provider is not None and not self._ready.is_set():
            self._let_go()  # what is being rented: the sooner the cheaper
        if self._thread.ident is not None:
            self._thread.join(LEAVE_SECONDS)
            if self._thread.is_alive():  # it hangs in Ray, which would wait for it at the end of the process
                self._let_go()
                _abandon_ray()
        if self._info is not None:
            if self._watch is not None and self._watch.lost:
                # At the end Ray would wait for the head until it ends the process itself, or crash.
                self._let_go()
                _abandon_ray()
            else:
                _disconnect()
            self._info = self._watch = None
        if self._node is not None:
            self._node.stop()
            self._node = None
        if self._auth:  # once: the next cluster may have set its own since
            restore_auth(self._auth)
            self._auth = {}
        self._let_go()

    def release(self) -> None:
        """Leave the cluster, and wait until what its provider made is gone; again does nothing."""
        self._leave()  # at the end of a process no thread can be started
        if self._releasing is not None:
            self._releasing.join()
        elif self._launched:
            self._release()

    def _release(self) -> None:
        if self.provider.own:  # of others leaving is all
            self.provider.release()
        self._launched = False
        atexit.unregister(self.release)

    def _let_go(self) -> None:
        """Whatever goes wrong: what was made has an expiry, too."""
        if self._launched:
            try:
                self.provider.leave()
            except Exception as error:  # noqa: BLE001  the end of a job must not fail for it
                _LOGGER.warning("%s", error)

    def _keep(self) -> None:
        while not self._leaving.wait(KEEP_SECONDS):
            try:
                self.provider.keep()
            except Exception as error:  # noqa: BLE001  tried again; the machines' own clocks leave time for that
                _LOGGER.warning("%s: its expiry or its size was not kept: %s", self.provider.where, error)

    def _join(self) -> None:
        try:
            self._info = self._joined()
            self._watch = HeadWatch(self._info.address)
        except Exception as error:  # noqa: BLE001  thread edge: ``wait`` raises it
            self._error = (
                error
                if isinstance(error, ClusterError | ConfigError)
                else _failed(self.provider.where, error)
            )
        self._ready.set()
        if self._info is not None and self._modules:
            _import_there(self._modules, self._info.stable_resource)

    def _joined(self) -> ClusterInfo:
        own = self.provider.own
        self.launch()
        if own:
            with lasting_imports():
                import ray  # noqa: F401  beside its start
        access = self.provider.access(self._refuse_left)
        largest = self._largest()
        self._joining = time.monotonic()
        if own or self._settings.provider is not None:
            enable_token_auth(access.auth_token)
        if self._settings.provider is not None:
            self._node = join_as_node(access.address)
        info = _connect(access.address, self._settings, self._began)
        if own:
            return replace(info, own=True, inherited=self._inherited)
        self._leave_open(access.address, info.address)
        joined = self._with_workers(info, access)
        nodes = marked(joined.nodes, leaving())
        late = self._unjoined(nodes)
        return replace(joined, nodes=nodes, coming=node_types(), largest=largest, unjoined=late)

    def _leave_open(self, given: str, found: str) -> None:
        try:
            if answers_strangers(given, found):
                raise open_cluster_error(given)
        except (ClusterError, ConfigError):
            _disconnect()
            raise

    def _largest(self) -> float:
        """Most GPUs of one machine that is rented, or may be: a smaller one may join first."""
        if self._settings.provider is None:
            return 0.0
        if self.provider.largest is not None:
            return self.provider.largest
        return max((one.gpus or 0.0 for one in self.provider.nodes() if not one.head), default=0.0)

    def _unjoined(self, nodes: Sequence[Node]) -> tuple[float | None, ...]:
        """GPUs of each worker that is paid for, or asked for, and not in Ray yet: replicas wait for it."""
        if self._settings.provider is None:
            return ()
        try:
            return unjoined(self.provider, nodes)
        except DrayError as error:
            _LOGGER.warning(
                "%s: its machines cannot be listed, and a job without --replicas counts on those alone that "
                "have joined: %s",
                self.provider.where, error,
            )  # fmt: skip
            return ()

    def _with_workers(self, info: ClusterInfo, access: Access) -> ClusterInfo:
        """The cluster once the fewest workers that it is to have are in it."""

        def look() -> None:
            self._joining = time.monotonic()  # they have a limit of their own
            self._refuse_left()

        if access.minimum:
            try:
                nodes, resource = await_workers(self.provider, access, look)
            except ClusterError:
                _disconnect()
                raise
            seconds = time.monotonic() - self._began
            info = replace(info, nodes=nodes, stable_resource=resource, seconds=seconds, ready=time.time())
        return info

    def _refuse_left(self) -> None:
        if self._leaving.is_set():
            raise ClusterError(f"{self.provider.where}: left before it was joined")


def _disconnect() -> None:
    import ray

    ray.shutdown()


def _import_there(modules: Sequence[str], resource: str) -> None:
    import ray

    options = {"num_cpus": 0, "max_retries": 0, "resources": {resource: MARK}}
    ray.remote(_import_all).options(name="imports", **options).remote(modules)


def _import_all(modules: Sequence[str]) -> None:
    """Import in a worker process. What fails here fails again in the shard task, which says so."""
    with suppress(ImportError), lasting_imports():
        for module in modules:
            import_module(module)


def _abandon_ray() -> None:
    """End this process without Ray's own end, which waits for what does not come."""
    ray = sys.modules.get("ray")
    if ray is not None:
        atexit.unregister(ray.shutdown)
    end_without_teardown()


def _failed(where: str, error: Exception) -> ClusterError:
    versions = versions_told(str(error))
    if versions is not None:
        return ClusterError(f"could not join {where}: {versions}")
    return ClusterError(f"could not join {where}: {type(error).__name__}: {first_line(error, 300)}")


def _connect(address: str, settings: ClusterSettings, began: float) -> ClusterInfo:
    import ray

    keep_off_stdout()
    let_main_thread_alone_start_ray()
    if settings.address is not None and settings.provider is None:
        nodes_joined(address)
    show_no_secret_of_the_command()
    ray.init(
        address=address,
        job_config=own_job_config(),
        namespace=NAMESPACE,
        logging_level=logging.ERROR,  # what matters is raised; the rest would break up the run's lines
        log_to_driver=False,  # worker output may quote prompts; replicas hand over their log instead
        runtime_env=runtime_env_of(settings.environment, settings.packages),
    )
    nodes, resource = live_nodes()
    return ClusterInfo(
        address=ray.get_runtime_context().gcs_address,
        nodes=nodes,
        seconds=time.monotonic() - began,
        stable_resource=resource,
        shared=settings.address is not None and settings.provider is None,
    )
