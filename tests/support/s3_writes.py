"""What the emulator does with requests that change objects: whole, in parts, copied, and on conditions.

As S3 documents it: ``If-None-Match: *`` and ``If-Match`` hold at the moment the object changes (412
PreconditionFailed otherwise, 404 where ``If-Match`` finds nothing); an upload that was completed or aborted
is NoSuchUpload; ETags are those of the content, so the same bytes in the same parts have the same one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape, unescape

from tests.support.s3_pages import Refusal, Request, etag_of

UPLOADS = ".uploads"  # the folder of uploads under way, one each
ABOUT = ".about"  # the folder of what is known of written objects
_LEAST_PART = 5 << 20  # bytes of every part but the last
_MOST_PARTS = 10_000


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A status, headers, and a body in XML."""

    status: int
    headers: dict[str, str]
    body: str = ""


def writes(request: Request) -> bool:
    """Whether it would change an object."""
    return request.method in ("PUT", "POST", "DELETE")


def part_of_upload(request: Request) -> str:
    """Whether it begins one of the "uploads" in parts, or is one of their "aborts"; else empty."""
    if request.method == "POST" and "uploads" in request.query:
        return "uploads"
    return "aborts" if request.method == "DELETE" and "uploadId" in request.query else ""


def known(root: Path, name: str, stat: os.stat_result, *, changed: bool) -> tuple[str, dict[str, str]]:
    """ETag of an object, and the headers of its own that it was written with."""
    try:
        about = json.loads((root / ABOUT / name).read_text())
    except (FileNotFoundError, NotADirectoryError):
        about = {}
    if changed or about.get("state") != [stat.st_mtime_ns, stat.st_size]:
        return etag_of(stat, changed=changed), {}
    return about["etag"], about["headers"]


def write(root: Path, request: Request, name: str, *, equal_parts: bool = False) -> Answer | Refusal:
    """Do what the request asks of the object ``name`` (bucket and key).

    ``equal_parts`` refuses uploads whose parts but the last differ in size, as Cloudflare's R2 does.
    """
    if not (root / name.partition("/")[0]).is_dir():
        return Refusal(status=404, code="NoSuchBucket")
    with _alone(root):
        if "uploadId" in request.query or "uploads" in request.query:
            return _in_parts(root, request, name, equal_parts=equal_parts)
        if request.method == "POST":
            return _delete_many(root, request, name)
        if request.method == "DELETE":
            return _unmet(root, request, name) or _delete(root, name)
        content = request.body
        if source := request.headers.get("x-amz-copy-source"):
            try:
                content = (root / unquote(source).lstrip("/")).read_bytes()
            except FileNotFoundError:
                return Refusal(status=404, code="NoSuchKey")
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if refusal := _unmet(root, request, name):
            return refusal
        _put(root, name, content, etag, _own_headers(request))
        copied = f"<CopyObjectResult><ETag>{escape(etag)}</ETag></CopyObjectResult>" if source else ""
        return Answer(status=200, headers={"ETag": etag}, body=copied)


def list_uploads(root: Path, request: Request) -> str:
    """The XML of ListMultipartUploads: all on one page, by key and then by their start."""
    bucket, prefix = os.path.normpath(request.path).strip("/"), request.query.get("prefix", "")
    found = []
    for about in uploads(root):
        with suppress(FileNotFoundError):  # it was completed or aborted this moment
            begun, name = about.stat().st_mtime_ns, json.loads(about.read_text())["name"]
            if name.startswith(f"{bucket}/{prefix}"):
                found.append((name.removeprefix(f"{bucket}/"), begun, about.parent.name))
    listed = "".join(
        f"<Upload><Key>{escape(key)}</Key><UploadId>{upload}</UploadId></Upload>"
        for key, _, upload in sorted(found)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Bucket>{escape(bucket)}</Bucket><Prefix>{escape(prefix)}</Prefix>"
        f"<IsTruncated>false</IsTruncated>{listed}</ListMultipartUploadsResult>"
    )


def _in_parts(root: Path, request: Request, name: str, *, equal_parts: bool) -> Answer | Refusal:
    if request.method == "POST" and "uploads" in request.query:
        upload = secrets.token_hex(16)
        folder = root / UPLOADS / upload
        folder.mkdir(parents=True)
        (folder / "about").write_text(json.dumps({"name": name, "headers": _own_headers(request)}))
        begun = f"<UploadId>{upload}</UploadId>"
        return Answer(
            status=200,
            headers={},
            body=f"<InitiateMultipartUploadResult>{begun}</InitiateMultipartUploadResult>",
        )
    folder = root / UPLOADS / request.query["uploadId"]
    if not folder.is_dir():
        return Refusal(status=404, code="NoSuchUpload")
    if request.method == "PUT":
        number = int(request.query["partNumber"])
        if not 1 <= number <= _MOST_PARTS:
            return Refusal(status=400, code="InvalidArgument")
        (folder / f"part-{number:05d}").write_bytes(request.body)
        return Answer(status=200, headers={"ETag": f'"{hashlib.md5(request.body).hexdigest()}"'})
    if request.method == "DELETE":
        shutil.rmtree(folder)
        return Answer(status=204, headers={})
    return _complete(root, request, name, folder, equal_parts=equal_parts)


def _complete(
    root: Path, request: Request, name: str, folder: Path, *, equal_parts: bool
) -> Answer | Refusal:
    text = unescape(request.body.decode(), {"&quot;": '"'})
    parts = []
    for found in re.findall(r"<Part>.*?</Part>", text, re.DOTALL):
        number, told = re.search(r"<PartNumber>(\d+)<", found), re.search(r"<ETag>(.*?)<", found)
        assert number is not None
        assert told is not None
        path = folder / f"part-{int(number[1]):05d}"
        content = path.read_bytes() if path.exists() else None
        if content is None or hashlib.md5(content).hexdigest() != told[1].strip('"'):
            return Refusal(status=400, code="InvalidPart")
        parts.append(content)
    if any(len(part) < _LEAST_PART for part in parts[:-1]):
        return Refusal(status=400, code="EntityTooSmall")
    sizes = [len(part) for part in parts]
    if equal_parts and (len({*sizes[:-1]}) > 1 or sizes[-1] > sizes[0]):
        return Refusal(status=400, code="InvalidPart")
    if refusal := _unmet(root, request, name):
        return refusal
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    etag = f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'
    _put(root, name, b"".join(parts), etag, json.loads((folder / "about").read_text())["headers"])
    shutil.rmtree(folder)
    result = f"<ETag>{escape(etag)}</ETag>"
    return Answer(
        status=200,
        headers={},
        body=f"<CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>",
    )


def _unmet(root: Path, request: Request, name: str) -> Refusal | None:
    """Why the request's condition does not hold."""
    wanted = request.headers.get("if-match")
    path = root / name
    if request.headers.get("if-none-match") == "*" and path.is_file():
        return Refusal(status=412, code="PreconditionFailed")
    if wanted is None:
        return None
    if not path.is_file():
        return Refusal(status=404, code="NoSuchKey")
    etag, _ = known(root, name, path.stat(), changed=False)
    return None if wanted in (etag, "*") else Refusal(status=412, code="PreconditionFailed")


def _put(root: Path, name: str, content: bytes, etag: str, headers: dict[str, str]) -> None:
    path, about = root / name, root / ABOUT / name
    for folder in (path.parent, about.parent, root / UPLOADS):
        folder.mkdir(parents=True, exist_ok=True)
    draft = root / UPLOADS / f"draft-{secrets.token_hex(8)}"
    draft.write_bytes(content)
    stat = draft.stat()
    about.write_text(
        json.dumps({"etag": etag, "headers": headers, "state": [stat.st_mtime_ns, stat.st_size]})
    )
    draft.replace(path)


def _delete(root: Path, name: str) -> Answer:
    (root / name).unlink(missing_ok=True)
    (root / ABOUT / name).unlink(missing_ok=True)
    return Answer(status=204, headers={})


def _delete_many(root: Path, request: Request, name: str) -> Answer:
    bucket = name.partition("/")[0]
    keys = re.findall(r"<Key>(.*?)</Key>", request.body.decode())
    for key in keys:
        _delete(root, f"{bucket}/{unescape(key)}")
    deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
    return Answer(status=200, headers={}, body=f"<DeleteResult>{deleted}</DeleteResult>")


def _own_headers(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("x-amz-meta-")}


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One change at a time, in all processes of the emulator."""
    with (root / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def uploads(root: Path) -> list[Any]:
    """What is under way: folders of uploads that were neither completed nor aborted."""
    return sorted((root / UPLOADS).glob("*/about"))
