"""A Ray cluster that runs already, and goes on running after the job: dray neither makes nor ends it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dray.cluster.providers.protocol import Access, Expired, Grant, Machine, Market, Phase, Planned
from dray.cluster.ray_private import enable_token_auth, nodes_at
from dray.errors import ClusterError, first_line


class ExistingProvider:
    """The cluster whose head is at ``address`` (host:port, or ``auto``)."""

    own = False
    markets = frozenset({Market.OWN})
    largest = None
    join_seconds = float("inf")

    def __init__(self, address: str, auth_token: str | None) -> None:
        self._access = Access(address=address, auth_token=auth_token)
        self.where = f"the Ray cluster at {address}"

    def plan(self) -> tuple[Planned, ...]:
        """Nothing is made."""
        return ()

    def start(self) -> None:
        """It runs."""

    def access(self, look: Callable[[], None] = lambda: None) -> Access:
        """The access that the user gave."""
        return self._access

    def nodes(self) -> tuple[Machine, ...]:
        """The nodes that live, as the head says.

        Raises:
            ClusterError: the head does not answer, or wants another token.
        """
        if self._access.auth_token is not None:
            enable_token_auth(self._access.auth_token)
        try:
            found = nodes_at(self._access.address)
        except Exception as error:  # whatever Ray's client raises
            reason = first_line(error, 200, type(error).__name__)
            raise ClusterError(f"{self.where} does not say which nodes it has: {reason}") from error
        machines = [
            Machine(
                name=one.node_id,
                kind=" and ".join(f"{amount:g} {name}" for name, amount in one.resources.items()) or "node",
                market=Market.OWN,
                phase=Phase.LEAVING if one.draining else Phase.UP,
                head=one.head,
                address=one.address,
            )
            for one in found
        ]
        return tuple(sorted(machines, key=lambda one: not one.head))

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        """Grant the workers that exist: Ray's own autoscaler, if any, sees what replicas ask for."""
        have = tuple(one for one in self.nodes() if not one.head)
        reasons = ("its nodes are not dray's to start",) if len(have) < workers else ()
        return Grant(wanted=workers, machines=have, reasons=reasons)

    def drain(self, names: Collection[str]) -> None:
        """Do nothing: its nodes are not dray's to end."""

    def keep(self, *, at_once: bool = False) -> None:
        """It does not expire."""

    def leave(self) -> None:
        """It goes on running."""

    def release(self) -> tuple[str, ...]:
        """It goes on running."""
        return ()

    def sweep(self) -> tuple[Expired, ...]:
        """Nothing of it is dray's."""
        return ()
