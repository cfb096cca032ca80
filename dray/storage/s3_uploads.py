"""Files on their way to S3: an upload in parts is the draft, and its completion the publication.

What is written goes up at once, part by part: nothing is staged on a disk, and nothing is uploaded again
to be published. A successor aborts its predecessors' uploads, which the job's store knows: an aborted
upload cannot be completed. The completion also has a condition (``If-Match``, or ``If-None-Match: *``): that
under the final name lies what lay there when the upload began. So what a user or another job puts there
meanwhile is not replaced either. A store that knows no such conditions (501) still has the first fence.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dray.errors import JobFailedError
from dray.storage.draft import Stage, gone
from dray.storage.faults import boto3_translated, status_of
from dray.storage.files import FileInfo, join, writing
from dray.storage.layout import REPORT, is_published
from dray.storage.objects import ObjectStoreOptions, is_s3, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LEAST_PART_BYTES = 16 << 20
"""Bytes of a part, unless its file may need more than 10,000 of them."""

_LARGEST_BYTES = 5 << 40  # of an object
_MOST_PARTS = 10_000
_PLANNED_PARTS = 9000  # the end of a Parquet file comes on top
_MIB = 1 << 20
_IN_FLIGHT_BYTES = 128 << 20
_CONFLICTS = 5  # times that a completion is tried beside others that change the object
_DRAFT = "dray-draft"  # metadata that tells our own object from another of the same content


_PREFIXES = ("output", "errors", REPORT)  # of the names of files that are published


def part_bytes(most: int) -> int:
    """Bytes of each part but the last, of a file of about ``most`` bytes at most.

    One size for all: Cloudflare's R2 refuses an upload with parts of several (InvalidPart).
    """
    share = -(-min(most, _LARGEST_BYTES) // _PLANNED_PARTS)
    return max(LEAST_PART_BYTES, -(-share // _MIB) * _MIB)


def _address(uri: str) -> tuple[str, str]:
    """The bucket, and the key in it."""
    bucket, _, key = uri.split("://", 1)[1].partition("/")
    return bucket, key


class UploadDraft:
    """An upload in parts, of ``most`` bytes at most. ``stage`` is given its id before its first byte."""

    def __init__(
        self, uri: str, stage: Stage | None, options: ObjectStoreOptions | None, *, most: int = 0
    ) -> None:
        self.uri = uri
        self.rows = 0
        self.size = 0
        self.closed = False
        self._bucket, self._key = _address(uri)
        self._client = s3_client(options)
        self._token = secrets.token_hex(8)
        self._part_bytes = part_bytes(most)
        self._buffer = bytearray()
        self._sha256 = hashlib.sha256()
        self._etags: list[str] = []
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="dray-upload")
        self._flying: deque[tuple[int, Future[str]]] = deque()
        self._sent = 0
        self._done = False
        with writing(uri), boto3_translated(uri):
            self._condition = _unchanged_since(look_at(uri, client=self._client))
            begun = self._client.create_multipart_upload(
                Bucket=self._bucket, Key=self._key, Metadata={_DRAFT: self._token}
            )
        self._upload = begun["UploadId"]
        if stage is not None:
            try:
                stage.note(uri, self._upload)
            except BaseException:
                self.drop()
                raise

    def write(self, data: bytes) -> None:
        """Append bytes; JobFailedError where the store takes no more."""
        self.size += len(data)
        self._sha256.update(data)
        self._buffer += data
        while len(self._buffer) >= self._part_bytes:
            piece = bytes(memoryview(self._buffer)[: self._part_bytes])
            del self._buffer[: self._part_bytes]
            self._send(piece)

    def rename(self, uri: str) -> bool:
        """An upload has its name from its beginning."""
        return uri == self.uri

    def sync(self) -> None:
        """All parts are with the store."""
        if self.closed:
            return
        if self._buffer or not self._sent:  # an empty file is one empty part
            self._send(bytes(self._buffer))
        self.closed = True
        self._buffer.clear()
        while self._flying:
            self._land()
        self._threads.shutdown()

    def info(self) -> FileInfo:
        """Size and digest of what was written."""
        return FileInfo(uri=self.uri, size=self.size, sha256=self._sha256.hexdigest(), rows=self.rows)

    def publish(self) -> None:
        """Complete the upload, unless it was aborted, or what lies under the name is another by now.

        Raises:
            DraftGoneError: one of the two.
        """
        with writing(self.uri), boto3_translated(self.uri):
            self._complete()
        self._done = True

    def drop(self) -> None:
        """Abort the upload, unless it is published."""
        self.closed = True
        self._threads.shutdown(cancel_futures=True)
        if not self._done:
            with suppress(OSError):
                abort(self.uri, self._upload, client=self._client)

    def _send(self, piece: bytes) -> None:
        self._sent += 1
        if self._sent > _MOST_PARTS:
            raise JobFailedError(
                f"{self.uri} cannot be written: it would have more than {_MOST_PARTS:,} parts of "
                f"{self._part_bytes:,} bytes"
            )
        while self._flying and (len(self._flying) + 1) * len(piece) > _IN_FLIGHT_BYTES:
            self._land()
        self._flying.append((self._sent, self._threads.submit(self._send_part, self._sent, piece)))

    def _send_part(self, number: int, piece: bytes) -> str:
        with boto3_translated(self.uri):
            sent = self._client.upload_part(
                Bucket=self._bucket, Key=self._key, UploadId=self._upload, PartNumber=number, Body=piece
            )
        return sent["ETag"]

    def _land(self) -> None:
        """Wait for the oldest part under way."""
        _, part = self._flying.popleft()
        with writing(self.uri):
            try:
                self._etags.append(part.result())
            except FileNotFoundError as error:
                raise gone(self.uri) from error

    def _complete(self) -> None:
        parts: Any = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self._etags, 1)]
        which: Any = {"Bucket": self._bucket, "Key": self._key, "UploadId": self._upload}
        which |= {"MultipartUpload": {"Parts": parts}}
        for attempt in range(_CONFLICTS):
            code = self._try(which | self._condition)
            if code == "NotImplemented":
                code = self._try(which)
            if code is None:
                return
            if code != "ConditionalRequestConflict":
                break
            time.sleep(0.2 * (attempt + 1))
        # An acknowledgement may have been lost: then the object is ours, and the upload over.
        seen = look_at(self.uri, client=self._client)
        if seen is None or seen.draft != self._token:
            raise gone(self.uri)

    def _try(self, arguments: dict[str, Any]) -> str | None:
        """Complete it; None, or S3's word for why that may not be."""
        from botocore.exceptions import ClientError

        try:
            self._client.complete_multipart_upload(**arguments)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in _REFUSALS:
                return _REFUSALS[code]
            raise
        return None


_REFUSALS = {
    "PreconditionFailed": "PreconditionFailed",
    "412": "PreconditionFailed",
    "ConditionalRequestConflict": "ConditionalRequestConflict",
    "409": "ConditionalRequestConflict",
    "NoSuchUpload": "NoSuchUpload",
    "NoSuchKey": "PreconditionFailed",  # If-Match, and the object is gone
    "404": "NoSuchUpload",
    "NotImplemented": "NotImplemented",
    "501": "NotImplemented",
}


def try_upload(directory: str, options: ObjectStoreOptions | None) -> None:
    """Begin an upload of a file that jobs publish in a folder, and end it: nothing is left.

    One that a killed process leaves is ended as those of killed drivers are (:func:`unfinished_outputs`).

    Raises:
        OSError: files could not be published there; the text says what that takes.
    """
    uri = join(directory, REPORT)
    bucket, key = _address(uri)
    client = s3_client(options)
    try:
        look_at(uri, client=client)
        with boto3_translated(uri):
            begun = client.create_multipart_upload(Bucket=bucket, Key=key)
        abort(uri, begun["UploadId"], client=client)
    except PermissionError as error:
        raise PermissionError(f"{error}; {_NEEDED}") from error


_NEEDED = (
    "files go up in parts, which takes s3:PutObject, s3:GetObject, s3:ListBucket, s3:AbortMultipartUpload, "
    "and the encryption that the policy asks for (AWS_SERVER_SIDE_ENCRYPTION, AWS_SSE_KMS_KEY_ID)"
)


def unfinished(prefix: str, options: ObjectStoreOptions | None = None) -> list[tuple[str, str]]:
    """URIs and ids of the uploads under way whose URI begins so: killed writers leave theirs.

    Nothing on other stores than S3, nor where S3 does not tell: such an upload only costs room.
    After this the caller checks that it is still the writer there, and only then ends what was found.
    """
    if not is_s3(prefix):
        return []
    bucket, key = _address(prefix)
    found: list[tuple[str, str]] = []
    with suppress(OSError), boto3_translated(prefix):
        pages = s3_client(options).get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=bucket, Prefix=key):
            found += [(f"s3://{bucket}/{one['Key']}", one["UploadId"]) for one in page.get("Uploads", ())]
    return found


def unfinished_outputs(directory: str, options: ObjectStoreOptions | None = None) -> list[tuple[str, str]]:
    """The unfinished uploads of files that jobs and exports publish in a folder."""
    root = join(directory, "")
    found = [one for prefix in _PREFIXES for one in unfinished(f"{root}{prefix}", options)]
    return [one for one in found if is_published(one[0].removeprefix(root))]


@dataclass(frozen=True, slots=True)
class Seen:
    """An object as it was seen. ``draft`` tells it from another upload of the same bytes."""

    etag: str
    draft: str | None


def look_at(
    uri: str, options: ObjectStoreOptions | None = None, *, client: S3Client | None = None
) -> Seen | None:
    """An object as it is now; None where there is none."""
    bucket, key = _address(uri)
    try:
        with boto3_translated(uri):
            found = (client or s3_client(options)).head_object(Bucket=bucket, Key=key)
    except FileNotFoundError:
        return None
    return Seen(found["ETag"], found.get("Metadata", {}).get(_DRAFT))


def _unchanged_since(seen: Seen | None) -> dict[str, str]:
    """S3's condition that the object is still the one that was seen, or that there is still none."""
    return {"IfNoneMatch": "*"} if seen is None else {"IfMatch": seen.etag}


def delete_unchanged(uri: str, seen: Seen, options: ObjectStoreOptions | None) -> bool:
    """Delete an object that is still the one that was seen, or gone; false where it is another by now.

    The condition holds to the ETag, which uploads of the same bytes share: so the object is looked at first.
    A store that knows no such condition (501, or none at all) has that look alone.
    """
    from botocore.exceptions import ClientError

    there = look_at(uri, options)
    if there != seen:
        return there is None
    bucket, key = _address(uri)
    client = s3_client(options)
    with boto3_translated(uri):
        try:
            client.delete_object(Bucket=bucket, Key=key, IfMatch=seen.etag)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in ("NotImplemented", "501"):
                client.delete_object(Bucket=bucket, Key=key)
            elif status_of(error) != 404:
                if status_of(error) in (409, 412):
                    return False
                raise
    return True


def end_unfinished(found: Iterable[tuple[str, str]], options: ObjectStoreOptions | None = None) -> None:
    """Abort them. One that cannot be aborted stays: it only costs room."""
    for uri, upload in found:
        with suppress(OSError):
            abort(uri, upload, options)


def abort(
    uri: str, upload: str, options: ObjectStoreOptions | None = None, *, client: S3Client | None = None
) -> None:
    """End an upload: it cannot be completed any more. One that is over is left as it is.

    Raises:
        OSError: the store cannot be reached, or refuses; the text names the URI and no credential.
    """
    bucket, key = _address(uri)
    with suppress(FileNotFoundError), boto3_translated(uri):
        (client or s3_client(options)).abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
