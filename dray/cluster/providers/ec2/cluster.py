"""A cluster of EC2 instances that can be opened: its settings lead to its provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dray.cluster.providers.ec2.settings import ENGINE_ARGUMENTS, EC2Settings
from dray.errors import ConfigError

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

    def for_engine(self, arguments: Mapping[str, Any]) -> EC2Cluster:
        """The same, with types compared by the split of an engine with these arguments.

        Raises:
            ConfigError: an argument is no whole number, or out of bounds; names it.
        """
        given = {name: arguments[name] for name in ENGINE_ARGUMENTS if arguments.get(name) is not None}
        for name, value in given.items():
            if name != "quantization" and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConfigError(f"engine argument {name}: {str(value)[:40]!r} is not a whole number")
        return replace(self, **given)
