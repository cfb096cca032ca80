"""What clusters have in common that dray makes by an API: they expire, and end while others start them."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dray.cluster.providers.protocol import Market
from dray.errors import ClusterError


class Expiring(Protocol):
    """Settings of a cluster that ends by itself."""

    @property
    def lifetime(self) -> float:
        """Seconds for which it lives after its end was last put off."""

    @property
    def markets(self) -> frozenset[Market]:
        """The markets of which it may have machines."""

    @property
    def join_seconds(self) -> float:
        """What machines have to join."""


def expiry_of(said: str) -> float | None:
    """When something ends by itself, in seconds since 1970, as its tag or annotation says.

    None where that is no number: dray leaves such a thing alone.
    """
    return float(said) if said.isdecimal() else None


S = TypeVar("S", bound=Expiring)
A = TypeVar("A")


class MadeCluster(ABC, Generic[S, A]):
    """A cluster of these settings, behind an API that is opened when it is first needed.

    ``_creating`` is held by whatever creates, and by the release, which sets ``_ending``. ``of_job``: no
    other process knows of the cluster. ``_made``: this one has made it, or began to.
    """

    own = False
    where: str

    def __init__(self, settings: S, make_api: Callable[[S], A], *, of_job: bool) -> None:
        self.markets = settings.markets
        self.join_seconds = settings.join_seconds
        self._of_job = of_job
        self._made = False
        self._settings = settings
        self._make_api = make_api
        self._known_api: A | None = None
        self._creating = threading.RLock()
        self._ending = threading.Event()
        self._kept = time.monotonic()

    @property
    def _api(self) -> A:
        if self._known_api is None:
            self._known_api = self._make_api(self._settings)
        return self._known_api

    def keep(self, *, at_once: bool = False) -> None:
        """Once in a third of its lifetime, put off when the cluster ends by itself."""
        if not at_once and time.monotonic() - self._kept < self._settings.lifetime / 3:
            return
        with self._creating:
            if not self._ending.is_set():
                self._put_off()

    def leave(self) -> None:
        """Let it go, if it was made here. Of a job's own cluster nothing is made after it."""
        if self._of_job:
            self._ending.set()  # before the look at `_made`: a start sets that first, and then looks at this
        if self._made:
            self._let_go()

    @abstractmethod
    def _let_go(self) -> None:
        """Have a cluster end that was made here."""

    @abstractmethod
    def _put_off(self) -> None:
        """Have the cluster end by itself at :meth:`_expires`, and note that in ``_kept``."""

    def _expires(self) -> float:
        """When the cluster ends if that is put off now, in seconds since 1970."""
        return self._now() + self._settings.lifetime

    def _now(self) -> float:
        """The time now, by the clock that its expiry is compared with."""
        return time.time()

    def _refuse_ending(self) -> None:
        if self._ending.is_set():
            raise ClusterError(f"{self.where}: it is being released")
