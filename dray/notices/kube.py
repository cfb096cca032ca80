"""Kubernetes: the deletion of this pod, and what says that the node under it is going.

Read from the API server with the pod's service account, which needs ``get`` on its pods and, for the taints,
on nodes. https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from dray.notices.asking import TIMEOUT, Answer, ask, json_object
from dray.notices.instants import instant, on_this_clock
from dray.notices.notice import SOON, Notice, NoticeKind, SourceError, plain

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# Taints that announce an end. Not those that a spot node carries all its life (AKS's scalesetpriority), nor
# a plain cordon, nor what is said of a node that is lost already (unreachable, not-ready).
TAINTS: Mapping[str, NoticeKind] = {
    "aws-node-termination-handler/spot-itn": NoticeKind.TAINT,
    "aws-node-termination-handler/asg-lifecycle-termination": NoticeKind.TAINT,
    "aws-node-termination-handler/scheduled-maintenance": NoticeKind.MAINTENANCE,
    "aws-node-termination-handler/rebalance-recommendation": NoticeKind.REBALANCE,
    "karpenter.sh/disrupted": NoticeKind.TAINT,  # since v1
    "karpenter.sh/disruption": NoticeKind.TAINT,  # before
    "cloud.google.com/impending-node-termination": NoticeKind.TAINT,
    "ToBeDeletedByClusterAutoscaler": NoticeKind.TAINT,
    "node.cloudprovider.kubernetes.io/shutdown": NoticeKind.TAINT,
}


class ApiServer:
    """The API server, asked with a service account."""

    def __init__(
        self, base_url: str, token: Callable[[], str], *, trust: ssl.SSLContext | None = None
    ) -> None:
        self._base_url = base_url
        self._token = token
        self._trust = trust

    def get(self, path: str) -> Answer:
        """One object.

        Raises:
            SourceError: it cannot be had.
        """
        what = path.partition("?")[0]
        try:
            headers = {"Authorization": f"Bearer {self._token()}", "Accept": "application/json"}
            answer = ask(self._base_url, path, headers=headers, timeout=TIMEOUT, trust=self._trust)
        except SourceError:
            raise
        except (OSError, ValueError) as error:
            raise SourceError(f"GET {what}: the token cannot be read ({type(error).__name__})") from None
        if answer.status == 403:
            raise SourceError(f"GET {what}: not allowed; give the pod's service account `get` on it")
        if answer.status != 200:
            raise SourceError(f"GET {what}: status {answer.status}")
        return answer


class PodSource:
    """The deletion of this pod. Also says which node it is on, and how long SIGTERM lets it live."""

    name = "kubernetes"
    pause = 5.0  # a cluster has many nodes and one API server

    def __init__(self, api: ApiServer, namespace: str, pod: str) -> None:
        self.node: str | None = None
        self.grace = SOON
        self._api = api
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}"

    def poll(self) -> list[Notice]:
        """The notice, once the API server has marked the pod as deleted."""
        answer = self._api.get(self._path)
        spec = json_object(answer.body).get("spec")
        self.node = _text(spec, "nodeName") or self.node
        self.grace = _seconds(spec, "terminationGracePeriodSeconds") or self.grace
        return deletion(answer, time.time())


class NodeSource:
    """The taints and the deletion of a node; ``node`` may not know its name at first."""

    name = "kubernetes"
    pause = 5.0

    def __init__(self, api: ApiServer, node: Callable[[], str | None]) -> None:
        self._api = api
        self._node = node

    def poll(self) -> list[Notice]:
        """The notices in force, without deadlines: Kubernetes states none."""
        node = self._node()
        if node is None:
            return []
        # From the API server's cache, which is cheap for it, and late by less than a second.
        answer = self._api.get(f"/api/v1/nodes/{quote(node, safe='')}?resourceVersion=0")
        now = time.time()
        return [
            Notice(
                source=self.name,
                kind=TAINTS.get(mark, NoticeKind.TAINT),
                action=mark,
                deadline=None,
                seen_at=now,
                id=f"kubernetes/node/{mark}@{since}",
            )
            for mark, since in marks(answer).items()
        ]


def sources_in_pod(environ: Mapping[str, str], account: Path) -> tuple[PodSource, NodeSource] | None:
    """The sources for the pod that this process runs in; None where it runs in none."""
    address = api_address(environ)
    pod = environ.get("POD_NAME") or environ.get("HOSTNAME")
    if not address or not pod or not (account / "token").is_file():
        return None
    namespace = account / "namespace"
    api = ApiServer(
        address,
        token=lambda: (account / "token").read_text().strip(),  # read each time: it is replaced every hour
        trust=trust_of(account),
    )
    space = namespace.read_text().strip() if namespace.is_file() else "default"
    of_pod = PodSource(api, space, pod)
    return of_pod, NodeSource(api, lambda: environ.get("NODE_NAME") or of_pod.node)


def api_address(environ: Mapping[str, str]) -> str:
    """Where the API server is, as a pod is told; empty outside a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return ""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def trust_of(account: Path) -> ssl.SSLContext:
    """What a service account trusts."""
    certificate = account / "ca.crt"
    context = ssl.create_default_context(cafile=certificate if certificate.is_file() else None)
    accept_authorities(context)
    return context


def accept_authorities(context: ssl.SSLContext) -> None:
    """Leave out the strict checks of Python 3.13: EKS has authorities without key identifiers.

    Chain and name are checked all the same. https://github.com/kubernetes-client/python/issues/2394
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def deletion(answer: Answer, now: float) -> list[Notice]:
    """A deleted pod is killed at ``deletionTimestamp``: the time of the request, and the grace period."""
    metadata = json_object(answer.body).get("metadata")
    stamp = _text(metadata, "deletionTimestamp")
    if stamp is None:
        return []
    return [
        Notice(
            source=PodSource.name,
            kind=NoticeKind.TERM,
            action="pod-deleted",
            deadline=on_this_clock(instant(stamp), said_at=answer.said_at, now=now),
            seen_at=now,
            id=f"kubernetes/pod/{plain(_text(metadata, 'uid'))}",
        )
    ]


def marks(answer: Answer) -> dict[str, str]:
    """What a node bears that says it is going, and since when, where the node tells."""
    node = json_object(answer.body)
    spec = node.get("spec")
    taints = spec.get("taints") if isinstance(spec, dict) else None
    found = {
        taint["key"]: plain(taint.get("timeAdded"))
        for taint in (taints if isinstance(taints, list) else [])
        if isinstance(taint, dict) and isinstance(taint.get("key"), str) and taint["key"] in TAINTS
    }
    stamp = _text(node.get("metadata"), "deletionTimestamp")
    return found if stamp is None else {**found, "node-deleted": plain(stamp)}


def _text(holder: object, name: str) -> str | None:
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, str) and found else None


def _seconds(holder: object, name: str) -> float | None:
    found = holder.get(name) if isinstance(holder, dict) else None
    return float(found) if type(found) is int and 0 < found < 10**9 else None
