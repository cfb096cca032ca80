"""How long a start waits for a head and for workers, and what its error says."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from dray.cluster.providers.kuberay.pods import QUEUED, Pod
from dray.cluster.providers.kuberay.settings import KubeRaySettings
from dray.errors import ClusterError

logger = logging.getLogger(__name__)

STUCK_SECONDS = 120.0
"""A registry may be busy for a minute; an image that is not there, or a command that fails, stays so."""


class Waiting:
    """One wait, from now on. ``where`` names the cluster."""

    def __init__(self, settings: KubeRaySettings, where: str) -> None:
        self._settings = settings
        self._where = where
        self._began = self._looked = time.monotonic()
        self._stuck_since: float | None = None
        self._told: set[str] = set()

    def look(
        self, pods: Sequence[Pod], *, head: bool, workers: int, refusal: str, queued: bool = False
    ) -> None:
        """Take note of what there is; ``refusal`` is what KubeRay says of pods that it cannot make.

        While the cluster is ``queued``, no limit runs: other jobs may take long to leave it room.

        Raises:
            ClusterError: it took too long, or what is missing cannot start.
        """
        missing = [one for one in pods if not one.ready and not one.leaving and (head or one.head)]
        late = dict.fromkeys(f"{one.name}: {one.stuck or one.why or one.phase}" for one in missing)
        if refusal:
            late[f"KubeRay: {refusal}"] = None
        self._tell([*(f"{one.name}: {one.stuck}" for one in missing if one.stuck), refusal])
        now = time.monotonic()
        if queued:
            self._began += now - self._looked
            self._tell([f"{QUEUED}, and start_seconds do not count until then"])
        self._looked = now
        if not missing or not all(one.stuck for one in missing):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        seconds = now - self._began
        allowed = self._settings.start_seconds + (self._settings.join_seconds if head else 0.0)
        stuck = self._stuck_since is not None and now - self._stuck_since > STUCK_SECONDS
        if seconds <= allowed and not stuck:
            return
        least = f"{workers} of at least {self._settings.minimum} workers are ready"
        what = least if head else "its head is not ready"
        why = "; ".join(late) or (QUEUED if queued else "KubeRay has made no pod: does it run?")
        raise ClusterError(f"{self._where}: {what} after {seconds:.0f} s ({why})")

    def _tell(self, troubles: Sequence[str]) -> None:
        """Once each: a start may wait for minutes."""
        for one in troubles:
            if one and one not in self._told:
                self._told.add(one)
                logger.warning("%s waits: %s", self._where, one)
