"""What a provider of clusters does: a Ray head, and as many workers as are wanted and can be had.

A provider finds or rents machines and starts Ray on them. It does not join the cluster, so a command can use
it as well as a driver, which joins what ``access`` names. All data here is frozen. The methods raise errors
of ``dray/errors.py`` alone: ConfigError where the user has to change something, ClusterError where something
cannot be had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from dray.errors import DrayError


class Market(StrEnum):
    """The terms on which a machine is there."""

    OWN = "own"
    ON_DEMAND = "on-demand"
    SPOT = "spot"


class Phase(StrEnum):
    """How far a machine is. ``coming``: it is paid for, and boots or waits."""

    COMING = "coming"
    UP = "up"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine of a cluster, as its provider sees it: whether Ray runs there, Ray says.

    ``name`` is the provider's own: an instance's id, a pod's name. ``kind``: its type. ``address`` is the one
    that Ray's nodes have, so it leads from a machine to its Ray node. ``expires``: seconds since 1970 after
    which `Provider.sweep` may release it, None for never. ``hourly``: dollars, and ``gpus``: what its type
    has, where the provider knows them. ``why``: what keeps it from coming up, or "".
    """

    name: str
    kind: str
    market: Market
    phase: Phase
    head: bool = False
    zone: str = ""
    address: str = ""
    expires: float | None = None
    hourly: float | None = None
    gpus: float | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One object that a provider would create, as the provider's API takes it. Holds no secret."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The result of asking for a number of workers. ``reasons``: why there are fewer, a sentence each."""

    wanted: int
    machines: tuple[Machine, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def short(self) -> int:
        """Workers that were wanted, and are not there or coming."""
        return max(0, self.wanted - len(self.machines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to join the cluster: the head's address, and its token where it has one of its own.

    It is not to be used before ``minimum`` workers have joined; ``patience`` is how many seconds they have.
    """

    address: str
    auth_token: str | None = field(default=None, repr=False)
    minimum: int = 0
    patience: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What a sweep released: of which cluster, what kind of thing, and its name."""

    cluster: str
    kind: str
    name: str


class Provider(Protocol):
    """One cluster of a provider.

    Each call may come again, and from another thread: what is there already is not made twice. ``release``
    may come while another call runs, which then ends soon and leaves nothing behind.
    """

    @property
    def where(self) -> str:
        """The cluster in a phrase, for errors: ``the Ray cluster at 10.0.0.5:6379``."""

    @property
    def own(self) -> bool:
        """Whether it is on this machine and ends with this process: they share files, and no node comes."""

    @property
    def markets(self) -> frozenset[Market]:
        """Where its workers may come from."""

    @property
    def largest(self) -> float | None:
        """Most GPUs of one worker that may come; None where it does not know."""

    @property
    def join_seconds(self) -> float:
        """The seconds in which a worker has to join Ray, once there is a machine for it."""

    def plan(self) -> tuple[Planned, ...]:
        """What ``start`` would create; creates nothing.

        Raises:
            ConfigError: it cannot be made so.
        """

    def start(self) -> None:
        """Create it, or begin to: the head first, and as many workers as the settings say.

        Raises:
            ConfigError: the settings, the credentials or a quota do not allow it.
            ClusterError: there is no capacity for it. What was created so far is released.
        """

    def access(self, look: Callable[[], None] = lambda: None) -> Access:
        """Wait until the head takes connections. What ``look``, called once a second, raises ends the wait.

        Raises:
            ClusterError: the head did not come within the provider's limit; says why, as far as it is known.
        """

    def nodes(self) -> tuple[Machine, ...]:
        """All machines that are there or coming, also those just bought, the head first."""

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        """Have so many workers: get more, or let those go that were not asked for.

        While spot is cheaper, so many of them may be ``on_demand``, and the others wait for spot; None: as
        many as it takes.

        Capacity that cannot be had is no error: the grant says why. Calling again tries again. A provider
        whose workers are not its own to change grants those that there are.
        """

    def drain(self, names: Collection[str]) -> None:
        """Let these machines go, for good: their replicas have ended. ``desire`` counts them no longer."""

    def keep(self, *, at_once: bool = False) -> None:
        """Put off the expiry of all that is there: the job lives.

        Called every minute, it asks for it once in a third of the lifetime; ``at_once``: in any case.
        """

    def leave(self) -> None:
        """Begin to release it, where that takes long; ``release`` completes it."""

    def release(self) -> tuple[str, ...]:
        """Let go of everything that was created, also by a start that failed; the names of it.

        Raises:
            ClusterError: something could not be released; names it, and when it expires.
        """

    def sweep(self) -> tuple[Expired, ...]:
        """Release what has expired, of any cluster of this provider, made by any driver."""


@runtime_checkable
class RunsOnHead(Protocol):
    """A provider that can have the head of its cluster run a driver, from beyond the cluster's network."""

    def submit(self, arguments: Sequence[str]) -> str:
        """Run ``dray`` with these arguments there; returns the submission's id at once."""


@runtime_checkable
class SaysEnds(Protocol):
    """A provider that knows of machines of this process that have ended."""

    def ended(self) -> Mapping[str, str]:
        """Their names, each with what the provider says of its end, or "".

        Raises:
            ClusterError, ConfigError: it does not answer.
        """


def ends_of(provider: Provider) -> dict[str, str]:
    """The machines that have ended, in words, by name, as far as the provider says: ``i-1 (why)``."""
    if not isinstance(provider, SaysEnds):
        return {}
    try:
        return {name: f"{name} ({why})" if why else name for name, why in provider.ended().items()}
    except DrayError:
        return {}  # what it is for is told without


@runtime_checkable
class AsksAhead(Protocol):
    """A provider whose workers are asked for before there are machines for them."""

    def asked(self) -> Sequence[float | None]:
        """GPUs of each worker that there is to be, whether a machine has it yet or not.

        Raises:
            ClusterError, ConfigError: it does not say.
        """


class ProviderSettings(Protocol):
    """Frozen settings of a cluster that a provider makes: a block's, or those of a file."""

    @property
    def kind(self) -> str:
        """The provider's name, as in ``kind = "ec2"`` of a file."""

    def open(self, run: str = "") -> Provider:
        """The provider of this cluster; creates nothing, and calls no service.

        ``run`` sets the cluster of one job apart from all others of these settings.
        """

    def for_engine(self, arguments: Mapping[str, Any]) -> ProviderSettings:
        """The settings for a job whose engine has these arguments: they say which machines hold its model.

        Raises:
            ConfigError: an argument cannot be.
        """
