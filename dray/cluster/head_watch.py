"""Whether the head of the cluster lives. Without it Ray ends this process after a while, unexplained."""

from __future__ import annotations

import os
import time

from dray.cluster.listening import listens
from dray.errors import JobPausedError

_RAYS_SECONDS = "RAY_gcs_rpc_server_reconnect_timeout_s"
_RAYS_DEFAULT = 60.0
_SHARE = 0.75  # of Ray's time: to say what happened, and to leave in order


class HeadWatch:
    """Tries the port of the head's control store, at ``address`` (host:port)."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._silent_since: float | None = None  # first failure: a process that was stopped missed nothing
        self._patience = _SHARE * float(os.environ.get(_RAYS_SECONDS) or _RAYS_DEFAULT)
        self.lost = False

    def check(self) -> None:
        """Look once.

        Raises:
            JobPausedError: the head has taken no connection for most of the time that Ray allows.
        """
        if listens(self._address):
            self._silent_since = None
            return
        now = time.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        silent = now - self._silent_since
        if silent >= self._patience:
            self.lost = True
            raise JobPausedError(
                f"the head of the Ray cluster at {self._address} has been gone for {silent:.0f} s; committed "
                "rows are kept: when it is back, `dray resume JOB` goes on, or the same command with another "
                "--cluster"
            )
