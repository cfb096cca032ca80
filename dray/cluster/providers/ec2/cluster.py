"""A cluster of EC2 instances that can be opened: its settings lead to its provider."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dray.cluster.providers.ec2.settings import EC2Settings

if TYPE_CHECKING:
    from dray.cluster.providers.protocol import Provider


@dataclass(frozen=True, kw_only=True)
class EC2Cluster(EC2Settings):
    """What a user says of a cluster of EC2 instances, from which its provider is made."""

    def open(self, run: str = "") -> Provider:
        """The provider of this cluster; ``run`` sets a job's own apart from others of these settings."""
        from dray.cluster.providers.ec2.provider import EC2Provider

        named = replace(self, name=f"{self.name[: 39 - len(run)]}-{run}") if run else self
        return EC2Provider(named, of_job=bool(run))
