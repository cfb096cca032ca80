"""A Ray cluster that KubeRay makes in Kubernetes: start, follow, change and release it."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dray.cluster.head_jobs import driver_command, submission_id
from dray.cluster.providers.kuberay.api import KubeApi
from dray.cluster.providers.kuberay.objects import EXPIRES, MAKER, MANAGED_BY, ray_cluster
from dray.cluster.providers.kuberay.pods import QUEUED, Pod, is_queued, pods_of, refusal_of
from dray.cluster.providers.kuberay.settings import KubeRaySettings
from dray.cluster.providers.kuberay.sizing import Sizes, Wish, first_sizes, sizes
from dray.cluster.providers.kuberay.waiting import Waiting
from dray.cluster.providers.made import MadeCluster, expiry_of
from dray.cluster.providers.protocol import Access, Expired, Grant, Machine, Planned
from dray.errors import ClusterError, ConfigError, DrayError

_LOOK_SECONDS = 1.0
_SIZE_SECONDS = 10.0  # between two looks whether spot has to be made up for, while a cluster starts
_TRIES, _PAUSE = 8, 0.1  # of a change that others change as well; seconds more before each
_GONE_SECONDS = 60.0  # for pods to be gone, beyond their grace


class KubeRayProvider(MadeCluster[KubeRaySettings, KubeApi]):
    """The cluster of these settings. ``make_api`` is for tests.

    One lock is held by whatever creates, and by the release.
    """

    def __init__(
        self,
        settings: KubeRaySettings,
        make_api: Callable[[KubeRaySettings], KubeApi] = KubeApi.of,
        *,
        of_job: bool = False,
    ) -> None:
        super().__init__(settings, make_api, of_job=of_job)
        self._wish = Wish(
            workers=settings.workers, markets=settings.markets, spot_seconds=settings.spot_seconds
        )
        self._maker = secrets.token_hex(8)
        self.largest: float | None = settings.gpus
        self.where = f"the RayCluster {settings.name} in the namespace {settings.namespace}"

    def plan(self) -> tuple[Planned, ...]:
        """The one object. KubeRay makes the pods, a service and the token's secret from it."""
        return (Planned(kind="RayCluster", name=self._settings.name, body=self._object()),)

    def start(self) -> None:
        """Create the object; what it asks for comes later."""
        with self._creating:
            self._refuse_ending()
            self._api.clusters()  # says that KubeRay or a permission is missing, before anything is made
            there = self._api.cluster(self._settings.name)
            if there is None:
                self._create()
                return
            self._refuse_foreign(there)
            if there["metadata"].get("deletionTimestamp"):
                raise ClusterError(f"{self.where} is being deleted: start it again in a minute")
            self._put_off()
        self.desire(self._settings.workers)

    def _refuse_foreign(self, there: Mapping[str, Any]) -> None:
        if (there["metadata"].get("labels") or {}).get(MANAGED_BY) != "dray":
            raise ConfigError(f"{self.where} is there, and not of dray: give the cluster another name")

    def _create(self) -> None:
        """Create the cluster. Where the answer to a first try was lost, the second try finds it there.

        Raises:
            ClusterError: it is being released, or another process has made one of this name meanwhile.
        """
        self._made = True
        self._refuse_ending()
        try:
            if self._api.create(self._object()):
                return
            self._made = False  # until it is known whose it is
            maker = (self._cluster()["metadata"].get("annotations") or {}).get(MAKER)
            if maker != self._maker:
                raise ClusterError(f"{self.where} was made by another process at the same moment")
            self._made = True
        except DrayError as error:
            if not self._made:
                raise
            try:
                self._api.delete(self._settings.name)
            except DrayError as left:
                raise type(error)(f"{error}. It may be there all the same: {left}") from error
            raise

    def access(self, look: Callable[[], None] = lambda: None) -> Access:
        """Wait until the head and the fewest workers are ready."""
        waiting = Waiting(self._settings, self.where)
        sized = time.monotonic()
        while True:
            pods = self._pods()
            head = next((one for one in pods if one.head and one.ready and one.address), None)
            workers = sum(one.ready and not one.head and not one.leaving for one in pods)
            if head is not None and workers >= self._settings.minimum:
                return Access(
                    address=f"{head.address}:{self._settings.port}",
                    auth_token=self._token(),
                    minimum=self._settings.minimum,
                    patience=self._settings.join_seconds,
                )
            cluster = self._cluster()
            queued = is_queued(cluster)
            waiting.look(
                pods, head=head is not None, workers=workers, refusal=refusal_of(cluster), queued=queued
            )
            if queued:
                super().keep()  # it may wait for longer than it lives, and `up` puts nothing off
            until = time.monotonic() + _LOOK_SECONDS
            while time.monotonic() < until:
                look()
                self._refuse_ending()
                time.sleep(0.1)
            if time.monotonic() - sized > min(_SIZE_SECONDS, self._settings.spot_seconds):
                sized = time.monotonic()
                self._make_up_for_spot()

    def keep(self, *, at_once: bool = False) -> None:
        """Put off its end; have a standing cluster make up for spot, which no other call does for a job."""
        super().keep(at_once=at_once)
        if not self._of_job:
            self._make_up_for_spot()

    def nodes(self) -> tuple[Machine, ...]:
        """The pods that a node has, the head first. Those that wait for a node are none yet."""
        there = self._api.cluster(self._settings.name)
        if there is None:
            return ()
        found = [one for one in self._pods() if one.there or one.leaving]
        expires = _expiry(there)
        if expires is not None:
            expires -= self._api.ahead
        return tuple(one.machine(self._kind, self.largest, expires) for one in found)

    def asked(self) -> list[float | None]:
        """One for each pod that the groups are to have: some may wait for a node."""
        groups = self._cluster()["spec"]["workerGroupSpecs"]
        return [self._settings.gpus] * sum(int(one.get("replicas") or 0) for one in groups)

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        """Set how many pods there are to be. Those that no node takes stay asked for, and are told."""
        with self._creating:
            self._refuse_ending()
            self._wish = Wish(
                workers=workers,
                markets=self._settings.markets,
                on_demand=on_demand,
                spot_seconds=self._settings.spot_seconds,
            )
            self._fit()
            pods = [one for one in self._pods() if not one.head and not one.leaving]
        machines = tuple(one.machine(self._kind, self.largest, None) for one in pods if one.there)
        cluster = self._cluster()
        late = [(one.group, one.why or one.stuck) for one in pods]
        late += [("KubeRay", refusal_of(cluster)), ("the cluster", QUEUED if is_queued(cluster) else "")]
        reasons = dict.fromkeys(f"{group}: {why}" for group, why in late if why)
        return Grant(wanted=workers, machines=machines, reasons=tuple(reasons))

    def drain(self, names: Collection[str]) -> None:
        """Have KubeRay delete these pods, and no others in their place."""

        def change(replicas: Mapping[str, int], pods: Sequence[Pod]) -> Sizes:
            mine = {one.name: one.group for one in pods if one.name in names}
            leaving = {group: tuple(name for name, own in mine.items() if own == group) for group in replicas}
            left = {group: max(count - len(leaving[group]), 0) for group, count in replicas.items()}
            return Sizes(replicas=left, leaving=leaving)

        with self._creating:
            self._change(change)

    def _let_go(self) -> None:
        """Delete it; the pods finish what they do."""
        self._ending.set()
        with self._creating:
            self._api.delete(self._settings.name)

    def release(self) -> tuple[str, ...]:
        """Delete it, and wait until its pods are gone."""
        self._ending.set()
        with self._creating:
            if self._of_job and not self._made:
                return ()
            there = self._api.cluster(self._settings.name)
            if there is not None:
                self._refuse_foreign(there)
            names = [one.name for one in pods_of(self._api.pods(self._settings.name))]
            deleted = self._api.delete(self._settings.name)
            self._await_gone()
            self._made = False
            return (self._settings.name, *names) if deleted or names else ()

    def sweep(self) -> tuple[Expired, ...]:
        """Delete what has expired in the namespace."""
        swept = []
        for one in self._api.clusters():
            expires, metadata = _expiry(one), one["metadata"]
            if expires is not None and expires <= self._now() and not metadata.get("deletionTimestamp"):
                name = metadata["name"]
                if self._api.delete(name, one):
                    swept.append(Expired(cluster=name, kind="RayCluster", name=name))
        return tuple(swept)

    def submit(self, arguments: Sequence[str]) -> str:
        """Have the head run ``dray`` with these arguments, through its jobs API; the submission's id.

        Raises:
            ConfigError: the arguments run no job.
            ClusterError: there is no head, or its API does not take the job.
        """
        command = driver_command(arguments, self._settings.python)
        service = (self._cluster().get("status") or {}).get("head", {}).get("serviceName")
        if not service:
            raise ClusterError(f"{self.where}: it has no head yet; see `dray cluster status`")
        name = submission_id()
        # The API server keeps the usual header for itself; Ray takes this one as well.
        headers = {"X-Ray-Authorization": f"Bearer {self._token()}"}
        body = {"entrypoint": command, "submission_id": name}
        taken = f"submission_id {name} already exists"
        self._api.submit_job(service, body, headers, there=taken)
        return name

    # -- its parts --------------------------------------------------------------------------------

    def _now(self) -> float:
        """The time by the API server's clock, as its objects have it; a plan asks no server."""
        return time.time() + (0.0 if self._known_api is None else self._known_api.ahead)

    @property
    def _kind(self) -> str:
        """What a worker's machine is called: its instance type, or its GPUs."""
        return self._settings.instance_type or f"{self._settings.gpus} x {self._settings.gpu_resource}"

    def _object(self) -> dict[str, Any]:
        cluster = ray_cluster(self._settings, first_sizes(self._wish), self._expires())
        cluster["metadata"]["annotations"][MAKER] = self._maker
        return cluster

    def _cluster(self) -> dict[str, Any]:
        found = self._api.cluster(self._settings.name)
        if found is None:
            raise ClusterError(f"{self.where} is not there; start it first")
        return found

    def _pods(self) -> list[Pod]:
        return pods_of(self._api.pods(self._settings.name))

    def _fit(self) -> None:
        """Have the groups follow what is wished for, and what came of it."""
        with self._creating:
            self._change(lambda replicas, pods: sizes(self._wish, replicas, pods, self._now()))

    def _make_up_for_spot(self) -> None:
        """Like `_fit`, with as many workers as exist: `dray cluster up` may have changed that elsewhere."""

        def change(replicas: Mapping[str, int], pods: Sequence[Pod]) -> Sizes:
            wish = replace(self._wish, workers=sum(replicas.values()))
            return sizes(wish, replicas, pods, self._now())

        with self._creating:
            if not self._ending.is_set():
                self._change(change)

    def _change(self, change: Callable[[Mapping[str, int], Sequence[Pod]], Sizes]) -> None:
        """Write what ``change`` makes of the groups, again where another program has changed them meanwhile.

        It is given the replicas of each group, and the pods that these count: none that KubeRay is to delete.

        Raises:
            ClusterError: it is gone, or changes all the time.
        """
        for attempt in range(_TRIES):
            time.sleep(attempt * _PAUSE)  # KubeRay's reports of its state are changes as well
            cluster = self._cluster()
            groups = cluster["spec"]["workerGroupSpecs"]
            named = {name for group in groups for name in _named(group)}
            pods = self._pods()
            there = {one.name for one in pods}
            replicas = {one["groupName"]: int(one.get("replicas") or 0) for one in groups}
            found = change(replicas, [one for one in pods if one.name not in named])
            if dict(found.replicas) == replicas and not any(found.leaving.values()):
                return
            for group in groups:
                name = group["groupName"]
                group["replicas"] = found.replicas[name]
                left = [one for one in _named(group) if one in there]  # KubeRay has not come to these yet
                group["scaleStrategy"] = {"workersToDelete": [*left, *found.leaving[name]]}
            version = cluster["metadata"]["resourceVersion"]
            change_ = {"metadata": {"resourceVersion": version}, "spec": {"workerGroupSpecs": groups}}
            if self._api.patch(self._settings.name, change_):
                return
        raise ClusterError(f"{self.where}: another program changes it again and again; dray changed nothing")

    def _put_off(self) -> None:
        change = {"metadata": {"annotations": {EXPIRES: str(int(self._expires()))}}}
        if not self._api.patch(self._settings.name, change):
            raise ClusterError(f"{self.where} is not there any more")
        self._kept = time.monotonic()

    def _token(self) -> str:
        """The cluster's token, which KubeRay makes.

        Raises:
            ClusterError: it has not.
        """
        data = self._api.secret(self._settings.name)
        try:
            return base64.b64decode((data or {})["auth_token"], validate=True).decode()
        except (KeyError, binascii.Error, UnicodeDecodeError):
            raise ClusterError(
                f"{self.where}: KubeRay has made no token in the secret {self._settings.name}; dray needs "
                "KubeRay 1.7 or later"
            ) from None

    def _await_gone(self) -> None:
        until = time.monotonic() + self._settings.grace_seconds + _GONE_SECONDS
        while True:
            there = self._api.cluster(self._settings.name)
            left = [one["metadata"]["name"] for one in self._api.pods(self._settings.name)]
            if there is None and not left:
                return
            if time.monotonic() > until:
                what = ", ".join(left) or "its object"
                raise ClusterError(
                    f"{self.where} is marked as deleted, and {what} is still there: see whether KubeRay's "
                    "operator runs"
                )
            time.sleep(_LOOK_SECONDS)


def _named(group: Mapping[str, Any]) -> list[str]:
    """The pods of a group that KubeRay was asked to delete, some of them long ago."""
    return list((group.get("scaleStrategy") or {}).get("workersToDelete") or ())


def _expiry(cluster: Mapping[str, Any]) -> float | None:
    return expiry_of(str((cluster["metadata"].get("annotations") or {}).get(EXPIRES, "")))
