"""Object stores (s3, gs, az, http) behind a handful of functions: the one seam to obstore.

Errors of obstore leave here as :mod:`dray.storage.faults` has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dray.storage.addresses import decoded_path, refuse_metadata
from dray.storage.aws_profile import boto3_credentials, region_in
from dray.storage.faults import misnamed, translated
from dray.storage.object_settings import is_anonymous
from dray.storage.parts import one_ahead
from dray.storage.s3_settings import bundle, request_fields, send_with, trusted

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore, S3Credential

BLOCK_BYTES = 1 << 20
"""Bytes that one read of a stream asks for."""

PART_BYTES = 8 << 20
"""Bytes that one request to a store asks for."""

SCHEMES = ("s3", "gs", "az", "http", "https")
_WEB_TIMEOUT = "24h"
_WEB_STALL = "60s"
_UPLOAD_PART_BYTES = 8 << 20
_UPLOAD_PARTS = 9000  # S3 allows 10,000
_UPLOADING_BYTES = 256 << 20  # in memory at once
_UPLOADS_AT_ONCE = 12
_UPLOAD_TIMEOUT = timedelta(minutes=10)
"""All parts under way share the line, and at 160 kB/s twelve of them take so long.

obstore's limit for reads that bring nothing cannot stand in: it counts while a part goes up, too.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectStoreOptions:
    """How to reach object stores.

    What is None is left to the environment: the AWS, Google and Azure variables that obstore reads, and
    for S3 also boto3's profiles. ``extra`` holds further obstore settings (``skip_signature``...).
    """

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    allow_http: bool = False
    extra: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> ObjectStoreOptions:
        """The endpoint and region that the AWS variables name, or AWS's file; keys stay where they are."""
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None
        file = environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config")  # noqa: PTH111  raises for no user
        return cls(
            endpoint=endpoint,
            region=environ.get("AWS_REGION")
            or environ.get("AWS_DEFAULT_REGION")
            or region_in(file, environ.get("AWS_PROFILE")),
            allow_http=bool(endpoint and endpoint.startswith("http://")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One object: its URI, its size in bytes, and its version or ETag where the store gives one."""

    uri: str
    size: int
    version: str | None
    etag: str | None


def is_object(uri: str) -> bool:
    """Whether ``uri`` names an object store rather than a local file."""
    return "://" in uri and uri.split("://", 1)[0].lower() in SCHEMES


def is_s3(uri: str) -> bool:
    """Whether ``uri`` is on S3, or on a store that speaks as S3 does."""
    return uri.startswith("s3://")


def is_web(uri: str) -> bool:
    """Whether ``uri`` is on a web server, which has no listings."""
    return uri.lower().startswith(("http://", "https://"))


def head(uri: str, options: ObjectStoreOptions | None = None) -> ObjectInfo:
    """Size and version of one object; FileNotFoundError where there is none."""
    store, path = store_of(uri, options)
    with translated(uri):
        try:
            return info_of(uri, store.head(path))
        except FileNotFoundError:
            if not is_web(uri):
                raise
            return info_of(uri, store.get(path).meta)  # some servers answer GET alone, and HEAD with 405


def stream_whole(uri: str, options: ObjectStoreOptions | None) -> Iterator[bytes]:
    """The bytes of one object, in blocks of one request: not every web server knows ranges."""
    store, path = store_of(uri, options)
    with translated(uri):
        for block in store.get(path).stream(min_chunk_size=BLOCK_BYTES):
            yield bytes(block)


def stream_range(
    uri: str, offset: int, length: int, options: ObjectStoreOptions | None = None
) -> Iterator[bytes]:
    """The bytes ``[offset, offset + length)`` of one object, or those that there are, one request a part.

    A single request may live 30 seconds (object_store's default, which counts the reader's own time too); a
    part is done long before that, and is retried on its own.
    """
    store, path = store_of(uri, options)

    def part(start: int, end: int) -> bytes:
        return bytes(store.get(path, options={"range": (start, end)}).bytes())

    with translated(uri):
        yield from one_ahead(part, offset, offset + length, PART_BYTES)


def read_range(
    uri: str, start: int, end: int, *, etag: str, options: ObjectStoreOptions | None = None
) -> bytes:
    """The bytes ``[start, end)`` of one object in the state that ``etag`` names, in one request.

    Raises:
        ReplacedError: it is in another state now.
        OSError: it cannot be read, or the store sent another number of bytes.
    """
    store, path = store_of(uri, options)
    wanted: GetOptions = {"range": (start, end)}
    if etag and not etag.startswith("W/"):  # a weak one never matches (RFC 9110, 13.1.1)
        wanted["if_match"] = etag
    with translated(uri):
        body = store.get(path, options=wanted).bytes()
    if len(body) != end - start:
        raise OSError(f"{len(body):,} bytes came for {end - start:,}")
    return bytes(body)


def upload(path: Path, uri: str, options: ObjectStoreOptions | None = None) -> None:
    """Publish a local file as one object; big files go up in parts, and appear only when complete."""
    store, key = store_of(uri, options, uploads=True)
    part = max(_UPLOAD_PART_BYTES, -(-path.stat().st_size // _UPLOAD_PARTS))
    at_once = max(1, min(_UPLOADS_AT_ONCE, _UPLOADING_BYTES // part))
    with translated(uri):
        store.put(key, path, chunk_size=part, max_concurrency=at_once)


def put(uri: str, content: bytes, options: ObjectStoreOptions | None = None) -> None:
    """Write a small object over what is there."""
    store, key = store_of(uri, options)
    with translated(uri):
        store.put(key, content, use_multipart=False)


def create(uri: str, content: bytes, options: ObjectStoreOptions | None = None) -> bool:
    """Write a small object unless there is one of this name; false when there is.

    A store that knows no conditional puts writes it either way.
    """
    from obstore import exceptions as errors

    store, key = store_of(uri, options)
    with translated(uri):
        try:
            store.put(key, content, mode="create", use_multipart=False)
        except (errors.AlreadyExistsError, errors.PreconditionError):
            return False
        except (errors.GenericError, errors.NotSupportedError) as error:
            if not isinstance(error, errors.NotSupportedError) and "NotImplemented" not in str(error):
                raise
            if is_there(uri, options):
                return False
            put(uri, content, options)
    return True


def is_there(uri: str, options: ObjectStoreOptions | None) -> bool:
    """Whether there is an object of this name."""
    try:
        head(uri, options)
    except FileNotFoundError:
        return False
    return True


def copy(source: str, target: str, options: ObjectStoreOptions | None = None) -> None:
    """Let the store copy an object within its bucket, over what is there. FileNotFoundError: no source."""
    store, key = store_of(source, options)
    _, to = store_of(target, options)
    with translated(source):
        store.copy(key, to)


def delete(uri: str, options: ObjectStoreOptions | None = None) -> None:
    """Remove one object."""
    store, key = store_of(uri, options)
    with translated(uri):
        store.delete(key)


def info_of(uri: str, meta: ObjectMeta) -> ObjectInfo:
    """An object as obstore tells it."""
    etag = meta.get("e_tag")
    return ObjectInfo(uri=uri, size=meta["size"], version=meta.get("version") or etag, etag=etag)


def store_of(
    uri: str, options: ObjectStoreOptions | None, *, uploads: bool = False
) -> tuple[ObjectStore, str]:
    """obstore's store for the root of a URI, and the object's path below it.

    Its requests end after 30 seconds, as :func:`stream_range` wants it; those of a store for ``uploads``
    may take minutes.
    """
    parts = urlsplit(uri)
    if parts.query and is_web(uri):
        raise OSError(
            f"{uri.split('?')[0]}: addresses with a query (signed URLs) cannot be read; download the file"
        )
    root = f"{parts.scheme.lower()}://{parts.netloc}"
    # Not parts.path: an object's name may hold '?' and '#'.
    path = uri.split("://", 1)[1].partition("/")[2]
    if is_web(uri):
        path = decoded_path(uri, path)
    elif path.startswith("/"):  # obstore would leave it out, and ask for another object
        raise misnamed(uri)
    with translated(root):
        return _store(root, options or ObjectStoreOptions.from_env(), uploads), path


@lru_cache(maxsize=64)  # a store holds its connections, so one per bucket serves the whole process
def _store(root: str, options: ObjectStoreOptions, uploads: bool) -> ObjectStore:
    from obstore.store import from_url

    settings: dict[str, Any] = dict(options.extra)
    scheme = root.split("://", 1)[0]
    client: dict[str, Any] = {"allow_http": True} if options.allow_http or scheme == "http" else {}
    if scheme == "s3":
        settings |= _s3_settings(options)
        if (more := bundle()) is not None:
            client["root_certificate"] = more
    if scheme in ("http", "https"):
        refuse_metadata(root)
    if scheme in ("http", "https"):  # one request for a whole file: it may take long, but not stall
        client |= {"timeout": _WEB_TIMEOUT, "read_timeout": _WEB_STALL}
    elif uploads:  # and a part that came to the limit goes up once more
        client |= {"timeout": _UPLOAD_TIMEOUT}
        settings["retry_config"] = {"retry_timeout": 2 * _UPLOAD_TIMEOUT}
    return from_url(root, client_options=client or None, **settings)  # type: ignore[arg-type]


@lru_cache(maxsize=16)
def s3_client(options: ObjectStoreOptions | None) -> S3Client:
    """A client of S3's own, for what obstore does not offer: uploads that are completed on a condition."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.session import get_session

    options = options or ObjectStoreOptions.from_env()
    extra = {name.removeprefix("aws_"): value for name, value in options.extra}
    anonymous = is_anonymous("s3", extra)
    config = Config(
        retries={"mode": "standard", "max_attempts": 10},  # about a minute: answers wait to be published
        # As obstore does it: many stores of S3's kind know neither names of buckets in hosts nor checksums.
        s3={"addressing_style": "path" if options.endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": UNSIGNED} if anonymous else {}),
    )
    session = get_session()
    named = session.get_config_variable("ca_bundle")  # which boto3 reads itself
    client: S3Client = boto3.Session(botocore_session=session).client(
        "s3",
        endpoint_url=options.endpoint,
        region_name=options.region or extra.get("region"),
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=extra.get("session_token") or extra.get("token"),
        config=config,
        verify=None if named else trusted(),
    )
    send_with(client, request_fields(extra))
    return client


def forget_credentials() -> None:
    """Stores that are opened from now on ask for credentials again: the earlier ones were refused."""
    _store.cache_clear()
    s3_client.cache_clear()


def _s3_settings(options: ObjectStoreOptions) -> dict[str, Any]:
    named = {
        "endpoint": options.endpoint,
        "region": options.region,
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key,
    }
    settings: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    extra = dict(options.extra)
    known = options.access_key_id or "access_key_id" in extra or "AWS_ACCESS_KEY_ID" in os.environ
    if is_anonymous("s3", extra):
        return settings
    if not known:
        settings |= boto3_credentials()
    elif options.access_key_id and options.secret_access_key and not _names_token(extra):
        # obstore would send AWS_SESSION_TOKEN with it, which belongs to the environment's own key.
        settings["credential_provider"] = _alone(
            settings.pop("access_key_id"), settings.pop("secret_access_key")
        )
    return settings


def _names_token(extra: Mapping[str, str]) -> bool:
    return any(name.lower().removeprefix("aws_") in ("session_token", "token") for name in extra)


def _alone(key: str, secret: str) -> Callable[[], S3Credential]:
    """A key that goes with no token, as obstore asks for it."""
    return lambda: {"access_key_id": key, "secret_access_key": secret, "token": None, "expires_at": None}
