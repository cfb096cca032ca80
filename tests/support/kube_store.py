"""What the emulated API server of Kubernetes keeps, and how requests change it."""

from __future__ import annotations

import copy
import re
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.kube_schema import wrong

_PATH = re.compile(
    r"/(?:apis/ray\.io/v1|api/v1)/namespaces/(?P<space>[^/]+)/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?P<status>/status)?"
)
_OWNED = ("secrets", "services")
_DNS = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")

Answer = tuple[int, Any]


class KubeStore:
    """Objects by kind, namespace and name. Safe between threads."""

    def __init__(self) -> None:
        self.knows_ray = True
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._version = 0
        self._guard = threading.RLock()

    def answer(self, method: str, target: str, body: Any) -> Answer:
        """Status and body, as the real server gives them."""
        split = urlsplit(target)
        found = _PATH.fullmatch(split.path)
        if found is None or (not self.knows_ray and split.path.startswith("/apis/ray.io/")):
            return 404, "404 page not found"
        kind, space, name = found["kind"], found["space"], found["name"]
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        with self._guard:
            if name is None:
                return self._post(kind, space, body) if method == "POST" else self._list(kind, space, query)
            key = (kind, space, name)
            if key not in self.objects:
                return 404, _status(404, "NotFound", f'{kind} "{name}" not found')
            if method == "PATCH":
                return self._patch(key, body, of_status=bool(found["status"]))
            if method == "DELETE":
                return self._delete(key, body or {}, query)
            return 200, copy.deepcopy(self.objects[key])

    def _list(self, kind: str, space: str, query: dict[str, str]) -> Answer:
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
        items = [
            copy.deepcopy(one)
            for (own, where, _), one in sorted(self.objects.items())
            if own == kind
            and where == space
            and wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]
        return 200, {"kind": "List", "items": items}

    def _post(self, kind: str, space: str, body: Any) -> Answer:
        name = body["metadata"]["name"]
        refusal = _refusal(kind, body)
        if refusal is not None:
            return refusal
        if (kind, space, name) in self.objects:
            return 409, _status(409, "AlreadyExists", f'{kind} "{name}" already exists')
        made = copy.deepcopy(body)
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        made["metadata"] |= {"namespace": space, "uid": str(uuid.uuid4()), "creationTimestamp": stamp}
        self.objects[kind, space, name] = made
        self._bump(made)
        answer = copy.deepcopy(made)
        for reference in made["metadata"].get("ownerReferences") or ():
            if all(one["metadata"]["uid"] != reference["uid"] for one in self.objects.values()):
                self._collect(reference["uid"])  # its owner went meanwhile
        return 201, answer

    def _patch(self, key: tuple[str, str, str], body: Any, *, of_status: bool) -> Answer:
        old = self.objects[key]
        asked = (body.get("metadata") or {}).get("resourceVersion")
        if asked is not None and asked != old["metadata"]["resourceVersion"]:
            return 409, _status(409, "Conflict", "the object has been modified")
        new = _merged(old, {"status": body["status"]} if of_status else body)
        refusal = _refusal(key[0], new)
        if refusal is not None:
            return refusal
        self.objects[key] = new
        self._bump(new)
        return 200, copy.deepcopy(new)

    def _delete(self, key: tuple[str, str, str], options: dict[str, Any], query: dict[str, str]) -> Answer:
        one = self.objects[key]
        wanted = (options.get("preconditions") or {}).items()
        if not wanted <= one["metadata"].items():
            return 409, _status(409, "Conflict", "the precondition does not hold")
        if key[0] == "pods" and query.get("gracePeriodSeconds") != "0":
            grace = one["spec"].get("terminationGracePeriodSeconds", 30)
            until = datetime.fromtimestamp(time.time() + grace, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            one["metadata"].setdefault("deletionTimestamp", until)
            self._bump(one)
            return 200, copy.deepcopy(one)
        del self.objects[key]
        self._collect(one["metadata"]["uid"])
        return 200, _status(200, "", "")

    def _collect(self, owner: str) -> None:
        """As the garbage collector does with what a deleted object owned."""
        for key, one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences") or ()
            if any(reference["uid"] == owner for reference in owners):
                if key[0] in _OWNED:
                    del self.objects[key]
                else:
                    self._delete(key, {}, {})

    def _bump(self, one: dict[str, Any]) -> None:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)


def _refusal(kind: str, body: dict[str, Any]) -> Answer | None:
    if kind != "rayclusters":
        return None
    found = wrong(body)
    if _DNS.fullmatch(body["metadata"]["name"]) is None:
        found.append("metadata.name: no DNS label")
    if not found:
        return None
    return 422, _status(422, "Invalid", f"RayCluster is invalid: {'; '.join(found[:5])}")


def _merged(old: Any, change: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(change, dict) or not isinstance(old, dict):
        return copy.deepcopy(change)
    new = dict(old)
    for name, value in change.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(old.get(name), value) if name in old else copy.deepcopy(value)
    return new


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}
