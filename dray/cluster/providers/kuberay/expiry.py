"""Deletes a cluster once it has expired, also when no driver lives: runs in a container beside its head.

::

    python -m dray.cluster.providers.kuberay.expiry NAME

It asks the API server with the pod's service account, which needs ``get`` and ``delete`` on RayClusters, and
asks again where the server does not answer.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dray.cluster.providers.kuberay.objects import EXPIRES, GROUP, PLURAL, VERSION, unchanged
from dray.cluster.providers.made import expiry_of
from dray.notices.asking import Answer, ask, json_object
from dray.notices.instants import ahead
from dray.notices.kube import ACCOUNT, api_address, trust_of
from dray.notices.notice import SourceError

LOOK_SECONDS = 30.0
_TIMEOUT = 10.0
_LOGGER = logging.getLogger("dray.expiry")


class Watchdog:
    """Looks at one RayCluster."""

    def __init__(self, base_url: str, name: str, account: Path) -> None:
        self._base_url = base_url
        self._account = account
        namespace = (account / "namespace").read_text().strip()
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"
        self._trust = trust_of(account) if base_url.startswith("https:") else None

    def look(self) -> bool:
        """Whether the cluster is gone, or goes now.

        Raises:
            SourceError: the API server does not say.
        """
        answer = self._ask("GET")
        if answer.status == 404:
            return True
        if answer.status != 200:
            raise SourceError(f"GET {self._path}: status {answer.status}")
        cluster = json_object(answer.body)
        now = time.time()
        expires = expiry_of(cluster.get("metadata", {}).get("annotations", {}).get(EXPIRES, ""))
        if expires is None or expires > now + ahead(answer.said_at, now):
            return False  # by the server's clock, as drivers set it: this node's may be another
        status = self._ask("DELETE", {"preconditions": unchanged(cluster)}).status
        if status not in (200, 202, 404, 409):
            raise SourceError(f"DELETE {self._path}: status {status}")
        return status != 409  # a driver has put the expiry off since

    def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> Answer:
        token = (self._account / "token").read_text().strip()  # each time: it is replaced every hour
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return ask(
            self._base_url,
            self._path,
            method=method,
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
            timeout=_TIMEOUT,
            trust=self._trust,
        )


def main() -> None:
    """Look until the cluster is gone; the pod ends with it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    account = Path(os.environ.get("DRAY_SERVICE_ACCOUNT", str(ACCOUNT)))
    watchdog = Watchdog(os.environ.get("DRAY_API_SERVER") or api_address(os.environ), sys.argv[1], account)
    pause = float(os.environ.get("DRAY_LOOK_SECONDS", LOOK_SECONDS))
    while True:
        try:
            if watchdog.look():
                _LOGGER.info("dray: the cluster %s has expired, and is deleted", sys.argv[1])
                while True:  # were this process to end, Kubernetes would start it again
                    time.sleep(3600)
        except (SourceError, OSError) as error:
            _LOGGER.warning("dray: %s; asked again", error)
        time.sleep(pause)


if __name__ == "__main__":
    main()
