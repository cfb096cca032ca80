"""What the API server of Kubernetes refuses, in words that say what to do."""

from __future__ import annotations

import re
from typing import Any

from dray.errors import ClusterError, ConfigError, DrayError

_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_WORD = re.compile(r"\w")
_RBAC = "deployments/kubernetes/rbac.yaml has what dray needs"


def unconfigured(reason: str) -> ConfigError:
    """There is no way to the cluster."""
    return ConfigError(f"kuberay: no Kubernetes cluster can be asked: {reason}; see context and kubeconfig")


def unreachable(where: str, error: OSError) -> ClusterError:
    """No answer at all."""
    return ClusterError(f"{where} does not answer: {error}")


def refused(where: str, method: str, path: str, status: int, body: Any) -> DrayError:
    """The error of an answer: ConfigError where its user has something to change."""
    what = f"{_VERBS.get(method, method)} {_named(path)}"
    said = _said(body)
    if status == 401:
        return ConfigError(f"{where} does not accept the credentials (401): log in again, or renew the token")
    if status == 403:
        return ConfigError(f"{where}: {what} is not allowed ({said}); {_RBAC}")
    if status == 404 and "/apis/ray.io/" in path:
        return ConfigError(f"{where} knows no RayClusters: install KubeRay 1.7 or later in this cluster")
    if status == 404:
        return ClusterError(f"{where}: {what}: not found ({said})")
    if status in (400, 422):
        return ConfigError(f"{where} does not take the object: {said}")
    return ClusterError(f"{where}: {what}: status {status} ({said})")


def _named(path: str) -> str:
    """The kind of object of a path: ``rayclusters``, ``pods``, ``services/proxy``."""
    parts = path.partition("?")[0].split("/")
    after = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
    return "services/proxy" if "proxy" in after else after[0]


def _said(body: Any) -> str:
    """The message of a status, or the last words of a text. They may quote the object: it holds no secret."""
    if isinstance(body, str):
        lines = [line for line in body.split("\n") if _WORD.search(line)]
        message = lines[-1] if lines and not body.lstrip().startswith("<") else ""
    else:
        message = body.get("message", "") if isinstance(body, dict) else ""
    return " ".join(str(message).split())[:400] or "it gives no reason"
