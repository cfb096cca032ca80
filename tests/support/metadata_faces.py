"""The answers of four services that announce a machine's end, in the bytes that they are documented to send.

AWS and its mock (github.com/aws/amazon-ec2-metadata-mock), GCP's querying-metadata page, Azure's
scheduled-events page, and the Kubernetes API reference are what the bytes follow.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

NODE, POD, NAMESPACE = "node-7", "replica-0", "dray"
VM = "gpu-vmss_3"
ACCOUNT_TOKEN = "service-account-token"  # of the Kubernetes face

_NOT_FOUND_AWS = """<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
\t"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{0}</title>
 </head>
 <body>
  <h1>{0}</h1>
 </body>
</html>
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request. ``path`` is without its query."""

    method: str
    path: str
    query: dict[str, str]
    headers: Message
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer."""

    status: int
    body: bytes = b""
    type: str = "text/plain"
    headers: dict[str, str] = field(default_factory=dict)


class Aws:
    """``/latest/...`` of an EC2 instance, IMDSv2 only."""

    server = "EC2ws"

    def __init__(self) -> None:
        self.values: dict[str, Any] = {
            "spot/instance-action": None,
            "events/recommendations/rebalance": None,
            "instance-life-cycle": "spot",
            "instance-id": "i-0123456789abcdef0",
        }
        self._expiry: dict[str, float] = {}

    def answer(self, request: Request) -> Reply:
        if request.path == "/latest/api/token":
            return self._new_token(request)
        token = request.headers.get("X-aws-ec2-metadata-token", "")
        if self._expiry.get(token, 0.0) <= time.monotonic():
            return _aws_page(401, "401 - Unauthorized")
        value = self.values.get(request.path.removeprefix("/latest/meta-data/"))
        if value is None:
            return _aws_page(404, "404 - Not Found")
        return Reply(status=200, body=(value if isinstance(value, str) else json.dumps(value)).encode())

    def expire(self) -> None:
        self._expiry.clear()

    def _new_token(self, request: Request) -> Reply:
        wanted = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if request.method != "PUT":
            return _aws_page(405, "405 - Method Not Allowed")
        if request.headers.get("X-Forwarded-For"):
            return _aws_page(403, "403 - Forbidden")
        if not wanted.isdigit() or not 0 < int(wanted) <= 21600:
            return _aws_page(400, "400 - Bad Request")
        token = base64.b64encode(os.urandom(40)).decode()
        self._expiry[token] = time.monotonic() + int(wanted)
        headers = {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": wanted}
        return Reply(status=200, body=token.encode(), headers=headers)


class Gcp:
    """``/computeMetadata/v1/instance/...``; a request may wait for a change."""

    server = "Metadata Server for VM"

    def __init__(self) -> None:
        self.values: dict[str, Any] = {
            "preempted": "FALSE",
            "maintenance-event": "NONE",
            "scheduling/preemptible": "TRUE",
            "name": "gpu-spot-1",
        }
        self.changed = threading.Condition()

    def answer(self, request: Request) -> Reply:
        if request.headers.get("X-Forwarded-For") or request.headers.get("Metadata-Flavor") is None:
            text = 'Missing required header "Metadata-Flavor": "Google"'
            return self._reply(403, text, "text/html; charset=UTF-8")
        key = request.path.removeprefix("/computeMetadata/v1/instance/")
        if request.headers["Metadata-Flavor"] != "Google" or key not in self.values:
            return self._reply(404, "Not Found", "text/html; charset=UTF-8")
        if request.query.get("wait_for_change", "").lower() == "true":
            self._wait(key, request.query.get("last_etag"), float(request.query.get("timeout_sec", "3600")))
        value = self.values[key]
        return self._reply(200, value, "application/text", ETag=_etag(value))

    def _wait(self, key: str, etag: str | None, seconds: float) -> None:
        """Until the value differs from the one of ``etag``, or from the present one where there is none."""
        known = etag or _etag(self.values[key])
        with self.changed:
            self.changed.wait_for(lambda: _etag(self.values[key]) != known, seconds)

    def _reply(self, status: int, text: str, type_: str, **headers: str) -> Reply:
        common = {"Metadata-Flavor": "Google", "X-XSS-Protection": "0", "X-Frame-Options": "SAMEORIGIN"}
        return Reply(status=status, body=text.encode(), type=type_, headers=common | headers)


class Azure:
    """``/metadata/scheduledevents`` and ``/metadata/instance/compute``."""

    server = "Microsoft-IIS/10.0"
    versions = ("2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"events": [], "name": VM, "priority": "Spot"}
        self.incarnation = 1

    def answer(self, request: Request) -> Reply:
        if request.headers.get("Metadata", "").lower() != "true":
            return _json(400, {"error": "Bad request. Required metadata header not specified"})
        version = request.query.get("api-version")
        if version is None:
            text = "Bad request. api-version was not specified in the request"
            return _json(400, {"error": text, "newest-versions": ["2021-02-01", "2020-10-01"]})
        if request.path == "/metadata/instance/compute":
            found = {"azEnvironment": "AzurePublicCloud", "evictionPolicy": "Delete", "location": "westus2"}
            named = {name: self.values[name] for name in ("name", "priority")}
            return _json(200, found | named)
        if request.path != "/metadata/scheduledevents" or version not in self.versions:
            return _json(404, {"error": "Not found"})
        return _json(200, {"DocumentIncarnation": self.incarnation, "Events": self.values["events"]})


class Kubernetes:
    """``/api/v1/nodes/NAME`` and ``/api/v1/namespaces/NS/pods/NAME`` of an API server."""

    server = ""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {
            "taints": [],
            "node_deleted": None,
            "pod_deleted": None,
            "token": ACCOUNT_TOKEN,
            "may_read_nodes": True,
        }

    def answer(self, request: Request) -> Reply:
        if request.headers.get("Authorization") != f"Bearer {self.values['token']}":
            return _status(401, "Unauthorized", "Unauthorized")
        if request.path == f"/api/v1/namespaces/{NAMESPACE}/pods/{POD}":
            return _json(200, self._pod())
        if request.path.startswith("/api/v1/nodes/"):
            name = request.path.rpartition("/")[2]
            if not self.values["may_read_nodes"]:
                account = f"system:serviceaccount:{NAMESPACE}:default"
                text = f'nodes "{name}" is forbidden: User "{account}" cannot get resource "nodes"'
                return _status(403, "Forbidden", text)
            if name == NODE:
                return _json(200, self._node())
            return _status(404, "NotFound", f'nodes "{name}" not found')
        return _status(404, "NotFound", "the server could not find the requested resource")

    def expire(self) -> None:
        self.values["token"] = base64.b64encode(os.urandom(12)).decode()

    def _node(self) -> dict[str, Any]:
        metadata = {"name": NODE, "uid": "0f3c", "resourceVersion": "812"}
        spec: dict[str, Any] = {"providerID": f"aws:///us-west-2a/{NODE}"}
        if self.values["taints"]:
            spec["taints"] = self.values["taints"]
        if self.values["node_deleted"]:
            metadata["deletionTimestamp"] = self.values["node_deleted"]
        return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": {}}

    def _pod(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": POD, "namespace": NAMESPACE, "uid": "77aa"}
        if self.values["pod_deleted"]:
            metadata |= {"deletionTimestamp": self.values["pod_deleted"], "deletionGracePeriodSeconds": 45}
        spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 45}
        return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": {}}


Face = Aws | Gcp | Azure | Kubernetes
FACES: dict[str, tuple[str, Callable[[], Face]]] = {  # name: (what its paths begin with, what answers there)
    "aws": ("/latest/", Aws),
    "gcp": ("/computeMetadata/", Gcp),
    "azure": ("/metadata/", Azure),
    "kubernetes": ("/api/", Kubernetes),
}


def _aws_page(status: int, title: str) -> Reply:
    return Reply(status=status, body=_NOT_FOUND_AWS.format(title).encode(), type="text/html")


def _etag(value: str) -> str:
    return hashlib.md5(value.encode()).hexdigest()[16:]


def _json(status: int, found: dict[str, Any]) -> Reply:
    return Reply(status=status, body=json.dumps(found).encode(), type="application/json; charset=utf-8")


def _status(code: int, reason: str, message: str) -> Reply:
    found = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return _json(code, found | {"message": message, "reason": reason, "code": code})
