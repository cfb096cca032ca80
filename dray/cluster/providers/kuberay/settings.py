"""What a user says of a Ray cluster in Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dray.cluster.providers.checking import SHARED_BOUNDS, Bounds, check_form, check_numbers, markets_of
from dray.cluster.providers.protocol import Market
from dray.errors import ConfigError

# DNS labels (RFC 1035), and room for a job's own suffix and what KubeRay adds: it takes names of 63 signs.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,28}[a-z0-9])?")
_QUANTITY = re.compile(r"[1-9]\d*(?:\.\d+)?(?:Mi|Gi|Ti|M|G|T)")
_FORMS = {
    "namespace": re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"),
    "service_account": re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?"),
    "image": re.compile(r"[\w./:@+-]{1,512}"),
    **dict.fromkeys(("memory", "head_memory", "shared_memory"), _QUANTITY),
    "gpu_resource": re.compile(r"[a-z0-9.-]+/[\w.-]+"),
    "python": re.compile(r"[\w./+-]{1,256}"),
}
_LABEL_KEY = re.compile(
    r"(?:[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)?")
BOUNDS: Bounds = {
    **SHARED_BOUNDS,
    "cpus": (0.1, 1024),
    "gpus": (0, 64),
    "head_cpus": (0.1, 1024),
    "spot_seconds": (1, 7200),
    "grace_seconds": (30, 3600),
}


@dataclass(frozen=True, kw_only=True)
class KubeRaySettings:
    """A head on demand, and ``workers`` pods with a Ray node each, of which ``minimum`` have to come.

    Args:
        image: with dray, and the Ray and Python that the driver has.
        context, kubeconfig: where the cluster is; the current context of the usual file, or the pod's own
            service account, where None.
        cpus, memory, gpus: of a worker; ``gpu_resource`` is the device plugin's name for a GPU.
        shared_memory: of a worker, for weights: a volume in memory, which counts as the pod's.
        spot_selector, on_demand_selector: labels of nodes, none: any. The head is on demand as well.
        tolerations: keys of taints that pods tolerate, whatever their values.
        env_secrets: names of secrets of the namespace; Ray's containers get their keys as variables.
        instance_type: of the workers' nodes, by which the bill finds a price; as the catalogue names it.
        queue: of Kueue, which must take changes of size (its feature ElasticJobsViaWorkloadSlices).
        lifetime: seconds after which the cluster deletes itself, unless a driver puts that off.
        start_seconds, join_seconds: that the head has to be ready, and the ``minimum`` of workers. Time in
            a queue does not count.
        spot_seconds: after which a pod on demand takes the place of one that waits for spot.
        grace_seconds: that a pod has to end: more than replicas take to finish rows and commit them.
        port: of Ray's head.

    Raises:
        ConfigError: a value cannot be; names the field.
    """

    name: str = "dray"
    namespace: str = "default"
    image: str
    context: str | None = None
    kubeconfig: str | None = None
    workers: int = 1
    minimum: int = 1
    cpus: float = 4
    memory: str = "32Gi"
    gpus: int = 1
    gpu_resource: str = "nvidia.com/gpu"
    shared_memory: str = "16Gi"
    head_cpus: float = 4
    head_memory: str = "16Gi"
    spot: bool = True
    on_demand: bool = True
    spot_selector: Mapping[str, str] = field(default_factory=lambda: {"karpenter.sh/capacity-type": "spot"})
    on_demand_selector: Mapping[str, str] = field(
        default_factory=lambda: {"karpenter.sh/capacity-type": "on-demand"}
    )
    tolerations: tuple[str, ...] = ("nvidia.com/gpu",)
    instance_type: str | None = None
    service_account: str = "dray"
    image_pull_secrets: tuple[str, ...] = ()
    env_secrets: tuple[str, ...] = ()
    queue: str | None = None
    lifetime: float = 1800
    start_seconds: float = 600
    join_seconds: float = 900
    spot_seconds: float = 120
    grace_seconds: int = 120
    python: str = "python"
    port: int = 6379

    kind = "kuberay"

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError(
                f"kuberay: name {self.name!r} must be 1 to 30 lowercase letters, digits and dashes, and "
                "begin with a letter"
            )
        for name, form in _FORMS.items():
            self._refuse(name, getattr(self, name), form)
        for name in ("spot_selector", "on_demand_selector"):
            for key, value in getattr(self, name).items():
                self._refuse(name, key, _LABEL_KEY)
                self._refuse(name, value, _LABEL_VALUE)
        for key in self.tolerations:
            self._refuse("tolerations", key, _LABEL_KEY)
        for secret in self.image_pull_secrets:
            self._refuse("image_pull_secrets", secret, _FORMS["service_account"])
        for number, secret in enumerate(self.env_secrets, 1):
            if _FORMS["service_account"].fullmatch(secret) is None:  # not shown: it may be the secret itself
                raise ConfigError(
                    f"kuberay: env_secrets: number {number} is no name of a secret; name secrets of "
                    "the namespace, and keep the values in them"
                )
        for name in ("queue", "instance_type"):
            if getattr(self, name) is not None:
                self._refuse(name, getattr(self, name), _LABEL_VALUE)
        check_numbers(self.kind, self, BOUNDS)

    @property
    def markets(self) -> frozenset[Market]:
        """Where workers may come from."""
        return markets_of(self)

    def _refuse(self, name: str, value: str, form: re.Pattern[str]) -> None:
        check_form(self.kind, name, value, form)
