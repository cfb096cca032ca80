"""A Ray cluster in Kubernetes that can be opened: its settings lead to its provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dray.cluster.providers.kuberay.settings import KubeRaySettings

if TYPE_CHECKING:
    from dray.cluster.providers.protocol import Provider


@dataclass(frozen=True, kw_only=True)
class KubeRayCluster(KubeRaySettings):
    """What a user says of a Ray cluster in Kubernetes, from which its provider is made."""

    def open(self, run: str = "") -> Provider:
        """The provider of this cluster; ``run`` sets a job's own apart from others of these settings."""
        from dray.cluster.providers.kuberay.provider import KubeRayProvider

        named = replace(self, name=f"{self.name[: 29 - len(run)]}-{run}") if run else self
        return KubeRayProvider(named, of_job=bool(run))

    def for_engine(self, arguments: Mapping[str, Any]) -> KubeRayCluster:
        """The same: the user says what each worker has."""
        return self
