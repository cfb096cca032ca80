"""The replicas of a job: started by the driver, found by name, replaced when they die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dray.cluster.base import NAMESPACE, ClusterInfo
from dray.cluster.handed_down import handed_down
from dray.engine.client import RayReplica
from dray.engine.protocol import EngineInfo, EngineSpec
from dray.engine.replica import ReplicaStatus, actor_class
from dray.engine.seam import ray_errors
from dray.errors import CancelledError, EngineStartError, ReplicaLostError

MAX_RESTARTS = 20  # per job: a crash loop ends in a failed job, not in a bill
_NAME_SECONDS = 60.0  # until Ray has noticed the death of an actor, or of the driver that owned it


@dataclass(frozen=True, kw_only=True)
class ReplicaStart:
    """How a replica's start went, in seconds since 1970.

    ``began`` is when Ray was asked for it, ``process`` when its process began to build the engine, and
    ``ready`` when that could take work.
    """

    name: str
    began: float
    process: float
    ready: float
    info: EngineInfo


class ReplicaPool:
    """Owns the actors: they end with the process that made them.

    Names are ``JOB/replica-N``: a replacement takes its predecessor's name, so that a retried shard
    task finds it without being told.
    """

    def __init__(self, job_id: str, spec: EngineSpec, cluster: ClusterInfo, replicas: int) -> None:
        self._job_id = job_id
        self._spec = spec
        self._cluster = cluster
        self._replicas: dict[str, RayReplica] = {}
        self._began: dict[str, float] = {}
        self._guard = threading.Lock()
        self.restarts = 0
        self.names = tuple(replica_name(job_id, number) for number in range(replicas))

    def start(self) -> None:
        """Ask Ray for all replicas; returns at once."""
        for name in self.names:
            self._start(name)

    def wait_ready(self, timeout: float, stopped: Callable[[], bool] = lambda: False) -> list[ReplicaStart]:
        """Wait until every replica can take work.

        Raises:
            EngineStartError: one cannot be started, or not in time.
            CancelledError: ``stopped`` says that nobody wants them any more.
        """
        deadline = time.monotonic() + timeout
        return [self._wait(name, deadline, stopped) for name in self.names]

    def look(self) -> list[ReplicaStatus]:
        """What the live replicas say of themselves; dead ones are replaced.

        Raises:
            EngineStartError: too many died.
        """
        found = []
        for name in self.names:
            try:
                status = self._replicas[name].status(timeout=5)
            except ReplicaLostError:
                self._replace(name)
            else:
                if status is not None:
                    found.append(status)
        return found

    def stop(self) -> None:
        """End all replicas."""
        import ray

        with self._guard:
            for replica in self._replicas.values():
                ray.kill(replica.actor, no_restart=True)
            self._replicas.clear()

    def _start(self, name: str) -> None:
        began = time.time()
        options = actor_options(self._spec, self._cluster, len(self.names))
        actor = _create(name, self._spec, options)
        with self._guard:
            self._replicas[name] = RayReplica(name, actor)
            self._began[name] = began

    def _wait(self, name: str, deadline: float, stopped: Callable[[], bool]) -> ReplicaStart:
        while True:
            left = max(deadline - time.monotonic(), 0.1)
            try:
                info = self._replicas[name].ready(left, stopped)
                process, ready = _built(self._replicas[name])
            except ReplicaLostError:
                self._replace(name)
            except TimeoutError as error:
                raise EngineStartError(str(error)) from None
            else:
                began = self._began[name]
                ready = min(max(ready, began), time.time())  # its node's clock may be another one
                return ReplicaStart(name=name, began=began, process=process, ready=ready, info=info)

    def _replace(self, name: str) -> None:
        self.restarts += 1
        if self.restarts > MAX_RESTARTS:
            raise EngineStartError(f"replicas died {self.restarts} times; giving up on job {self._job_id}")
        import ray

        ray.kill(self._replicas[name].actor, no_restart=True)  # it may be alive and out of reach
        time.sleep(min(0.2 * 2**self.restarts, 5.0))
        self._start(name)


def _create(name: str, spec: EngineSpec, options: dict[str, Any]) -> Any:
    """A new actor of this name, once Ray has let go of its predecessor's."""
    import ray

    deadline = time.monotonic() + _NAME_SECONDS
    while True:
        try:
            return actor_class().options(name=name, namespace=NAMESPACE, **options).remote(name, spec)
        except ray.exceptions.ActorAlreadyExistsError:
            if time.monotonic() > deadline:
                raise EngineStartError(f"replica {name}: another actor of this name lives on") from None
            time.sleep(0.2)


def _built(replica: RayReplica) -> tuple[float, float]:
    """What the replica says of its own start: it may have been ready long before anybody asked."""
    import ray

    with ray_errors(replica.name):
        built: tuple[float, float] = ray.get(replica.actor.built.remote())
        return built


def replica_name(job_id: str, number: int) -> str:
    """The actor name of a job's replica."""
    return f"{job_id}/replica-{number}"


def wait_for_replica(
    name: str, *, timeout: float, stopped: Callable[[], bool] = lambda: False
) -> tuple[RayReplica, EngineInfo]:
    """The replica of this name and what it says of its engine, as soon as there is one that can take work.

    Raises:
        EngineStartError, ConfigError: its engine cannot be started.
        ReplicaLostError: there is none in time.
        CancelledError: ``stopped`` says that nobody wants it any more.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if stopped():
            raise CancelledError(f"stopped waiting for replica {name}")
        replica = RayReplica.find(name, NAMESPACE)
        if replica is not None:
            with suppress(ReplicaLostError, TimeoutError):
                return replica, replica.ready(max(deadline - time.monotonic(), 0.1), stopped)
        time.sleep(0.2)
    raise ReplicaLostError(f"replica {name} did not come back within {timeout:.0f} s")


def actor_options(spec: EngineSpec, cluster: ClusterInfo, replicas: int) -> dict[str, Any]:
    """Resources and environment of one replica's process."""
    variables = handed_down()
    options: dict[str, Any] = {"runtime_env": {"env_vars": variables}} if variables else {}
    if spec.name == "simulated":
        return options | {"num_cpus": 0}
    if any(node.gpus for node in cluster.nodes):
        return options | {"num_gpus": gpus_of(spec), "num_cpus": 1}
    cpus = max(node.cpus for node in cluster.nodes)
    # More replicas than processors share them: asking for whole ones, some would wait for ever.
    return options | {"num_cpus": cpus // replicas or cpus / replicas}


def default_replicas(spec: EngineSpec, cluster: ClusterInfo) -> int:
    """As many as there are GPUs for, node by node; one on a cluster without."""
    if spec.name != "vllm":
        return 1
    return max(1, sum(int(node.gpus) // gpus_of(spec) for node in cluster.nodes))


def gpus_of(spec: EngineSpec) -> int:
    """GPUs of one replica: one a rank."""
    given = spec.arguments
    return int(given.get("tensor_parallel_size", 1)) * int(given.get("pipeline_parallel_size", 1))
