"""What the emulator says over HTTP: requests and answers, S3's listings, and the pages of a model hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

HUB = "hub"  # the folder, and the bucket, of the hub's repositories
_REPOSITORY = r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)"
_PAGES = (
    re.compile(rf"/api/models/{_REPOSITORY}(/revision/(?P<revision>[^/]+))?"),
    re.compile(rf"/{_REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<file>.+)"),
)
_PRESIGNED = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One HTTP request; header names in lower case. ``raw_path`` has its percent signs yet."""

    method: str
    path: str
    raw_path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def lists(self) -> bool:
        """Whether it asks for a bucket's objects, not for one of them."""
        return self.path.count("/") == 1 or self.path.endswith("/")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why there is no answer, as S3 says it."""

    status: int
    code: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class HubPage:
    """What a request asks of the hub: a file of a repository, or (None) what files there are."""

    repository: str
    revision: str
    file: str | None

    @property
    def is_large(self) -> bool:
        """Whether the file is kept elsewhere, and the hub only says where."""
        return self.file is not None and self.file.endswith(".safetensors")


def read_request(stream: BinaryIO, connection: socket.socket | None = None) -> Request | None:
    """The next one of a connection, None at its end. Who waits for 100 Continue is told to go on."""
    line = stream.readline(65_536).decode("latin-1")
    if not line.strip():
        return None
    method, target, _ = line.split(" ", 2)
    headers = {}
    while (line := stream.readline(65_536).decode("latin-1").strip()) != "":
        name, value = line.split(":", 1)
        headers[name.strip().lower()] = value.strip()
    if target.startswith(("http://", "https://")):  # the absolute form (RFC 9112, 3.2.2)
        target = "/" + target.split("/", 3)[3]
    if connection is not None and headers.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    path, _, query = target.partition("?")
    return Request(
        method=method,
        path=unquote(path),
        raw_path=path,
        query={name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()},
        headers=headers,
        body=stream.read(int(headers.get("content-length", "0"))),
    )


def range_of(value: str | None, size: int) -> tuple[int, int] | None:
    """The half-open range of ``bytes=a-b``, ``a-`` and ``-n``; the whole where none is asked for."""
    if value is None:
        return 0, size
    first, _, last = value.removeprefix("bytes=").partition("-")
    start, end = (max(size - int(last), 0), size) if not first else (int(first), int(last or size - 1) + 1)
    return (start, min(end, size)) if start < min(end, size) else None


def send_head(connection: socket.socket, status: int, headers: dict[str, str]) -> None:
    """The status line and the headers."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())


def reply(
    connection: socket.socket, request: Request, status: int, body: bytes, headers: dict[str, str]
) -> bool:
    """A whole answer; True, as the connection can be used again."""
    send_head(connection, status, {**headers, "Content-Length": str(len(body))})
    if request.method != "HEAD":
        connection.sendall(body)
    return True


def reply_json(
    connection: socket.socket, request: Request, body: Any, headers: dict[str, str] | None = None
) -> bool:
    """A page for programs."""
    headers = {"Content-Type": "application/json", **(headers or {})}
    return reply(connection, request, 200, json.dumps(body).encode(), headers)


def refuse(connection: socket.socket, request: Request, refusal: Refusal) -> bool:
    """An error in XML, with the hub's header for it."""
    message = refusal.message or refusal.code
    text = f"<Error><Code>{refusal.code}</Code><Message>{message}</Message><RequestId>0</RequestId></Error>"
    headers = {"Content-Type": "application/xml", "X-Error-Code": refusal.code, "X-Error-Message": message}
    return reply(connection, request, refusal.status, text.encode(), headers)


def etag_of(stat: os.stat_result, *, changed: bool) -> str:
    """Changes with the file; its content is not read, which would take long."""
    state = f"{stat.st_mtime_ns} {stat.st_size}{' changed' * changed}"
    return '"' + hashlib.md5(state.encode()).hexdigest() + '"'


def signature_of(path: str) -> str:
    """What the query of the hub's redirects must hold."""
    return hashlib.sha256(f"signed {path}".encode()).hexdigest()


def not_signed(request: Request, page: HubPage | None, access_key: str | None) -> Refusal | None:
    """Why the request's keys are not right: in its headers, presigned, or of the hub's redirects."""
    header = request.headers.get("authorization", "")
    if page is not None:
        wrong = access_key is not None and header != f"Bearer {access_key}"
        return Refusal(status=401, code="Unauthorized", message="Invalid credentials") if wrong else None
    credential = request.query.get("X-Amz-Credential") or header.partition("Credential=")[2]
    if not credential and request.path.startswith(f"/{HUB}/"):
        right = request.query.get("Signature") == signature_of(request.path)
        return None if right else Refusal(status=403, code="SignatureDoesNotMatch")
    if access_key is not None and not credential.startswith(f"{access_key}/"):
        return Refusal(status=403, code="InvalidAccessKeyId")
    presigned = any(name.startswith("X-Amz-") for name in request.query)
    return _not_valid(request.query) if presigned else None


def _not_valid(query: dict[str, str]) -> Refusal | None:
    """Why a presigned request is too late, or lacks something."""
    try:
        _, _, date, seconds, *_ = [query[f"X-Amz-{name}"] for name in _PRESIGNED]
        signed = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        late = datetime.now(UTC) > signed + timedelta(seconds=int(seconds))
    except (KeyError, ValueError):
        return Refusal(status=400, code="AuthorizationQueryParametersError")
    return Refusal(status=403, code="AccessDenied", message="Request has expired") if late else None


def listing(root: Path, request: Request, *, changed: bool) -> bytes:
    """The XML of ListObjectsV2."""
    bucket = os.path.normpath(request.path).strip("/")
    prefix = request.query.get("prefix", "")
    after = request.query.get("continuation-token", request.query.get("start-after", ""))
    most = int(request.query.get("max-keys", "1000"))
    base = root / bucket
    keys = sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())
    found = [key for key in keys if key.startswith(prefix) and key > after]
    page, more = found[:most], len(found) > most
    stats = {key: (base / key).stat() for key in page}
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{stat.st_size}</Size>"
        f"<ETag>{escape(etag_of(stat, changed=changed))}</ETag>"
        f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
        for key, stat in stats.items()
    )
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
        f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}"
        "</ListBucketResult>"
    ).encode()


def hub_page(root: Path, path: str) -> HubPage | None:
    """The page of the hub at ``path``, where there is a hub."""
    found = next((match for pattern in _PAGES if (match := pattern.fullmatch(path))), None)
    if found is None or not (root / HUB).is_dir():
        return None
    parts = found.groupdict()
    return HubPage(
        repository=parts["repository"], revision=parts["revision"] or "main", file=parts.get("file")
    )


def hub_files(root: Path, page: HubPage) -> dict[str, Path]:
    """The files of the page's repository, by their names in it."""
    folder = root / HUB / page.repository
    return {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}


def hub_commit(files: dict[str, Path], *, changed: bool) -> str:
    """The commit that the files' ETags make up, 40 hexadecimal digits."""
    state = "\n".join(f"{name} {etag_of(file.stat(), changed=changed)}" for name, file in files.items())
    return hashlib.sha1(state.encode()).hexdigest()


def hub_refusal(page: HubPage, files: dict[str, Path]) -> Refusal | None:
    """Why there is no such page. A commit is known until a file is replaced, also while ETags are others."""
    if not files:
        return Refusal(status=404, code="RepoNotFound", message="Repository not found")
    known = {"main", *(hub_commit(files, changed=changed) for changed in (False, True))}
    if page.revision not in known:
        return Refusal(status=404, code="RevisionNotFound", message=f"Invalid rev id: {page.revision}")
    if page.file is not None and page.file not in files:
        return Refusal(status=404, code="EntryNotFound", message="Entry not found")
    return None


def hub_info(page: HubPage, files: dict[str, Path], *, changed: bool, blobs: bool) -> dict[str, Any]:
    """What the hub's API says of a repository; sizes only when asked for, as the real one does."""
    siblings = [
        {"rfilename": name, **(_blob(file, changed) if blobs else {})} for name, file in files.items()
    ]
    return {
        "id": page.repository,
        "modelId": page.repository,
        "sha": hub_commit(files, changed=changed),
        "siblings": siblings,
    }


def hub_redirect(page: HubPage, file: Path, base: str, *, changed: bool) -> dict[str, str]:
    """The headers that send a client to where a large file is."""
    path = f"/{HUB}/{page.repository}/{page.file}"
    return {
        "Location": f"{base}{quote(path)}?Signature={signature_of(path)}",
        "X-Linked-Etag": f'"{linked_etag(file, changed=changed)}"',
        "X-Linked-Size": str(file.stat().st_size),
    }


def linked_etag(file: Path, *, changed: bool) -> str:
    """The SHA-256 of a large file, read once for each state of it."""
    digest = _sha256(file, etag_of(file.stat(), changed=False))
    return hashlib.sha256(f"{digest} changed".encode()).hexdigest() if changed else digest


@lru_cache(maxsize=4096)
def _sha256(file: Path, etag: str) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _blob(file: Path, changed: bool) -> dict[str, Any]:
    stat = file.stat()
    blob: dict[str, Any] = {
        "size": stat.st_size,
        "blobId": hashlib.sha1(etag_of(stat, changed=changed).encode()).hexdigest(),
    }
    if file.suffix == ".safetensors":
        digest = linked_etag(file, changed=changed)
        blob["lfs"] = {"sha256": digest, "size": stat.st_size, "pointerSize": 134}
    return blob
