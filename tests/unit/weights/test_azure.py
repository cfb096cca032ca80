"""Models in Azure's Blob Storage, as far as its documented answers go: no real one was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dray.errors import WeightsError
from dray.storage import ObjectStoreOptions
from dray.storage.listings import list_under
from dray.storage.objects import head
from dray.storage.signing import signed_url
from dray.weights import LocalModel, check_remote, read_manifest
from dray.weights.node.places import CACHE_VARIABLE

pytestmark = pytest.mark.unit

HEADER = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
FILES = {"config.json": b"{}", "model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + b"abcd"}
URI = "az://models/m"


class _Blobs(BaseHTTPRequestHandler):
    """List Blobs, whose ETags have no quotes, and Get Blob, whose ETags have.

    https://learn.microsoft.com/rest/api/storageservices/list-blobs#response-body
    """

    protocol_version = "HTTP/1.1"
    state = "0x8DC0FFEE"
    token: str | None = None

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if self.token is not None and f"sig={self.token}" not in place.query:
            self._reply(403, b"", {})
            return
        if parse_qs(place.query).get("comp") == ["list"]:
            self._reply(200, self._listing(), {"Content-Type": "application/xml"})
            return
        data, etag = FILES[place.path.rpartition("/")[2]], f'"{self.state}"'
        if self.headers.get("If-Match", etag) != etag:
            self._reply(412, b"", {})
            return
        headers = {"ETag": etag, "Last-Modified": formatdate(0, usegmt=True)}
        span = self.headers.get("x-ms-range") or self.headers.get("Range")
        if span is None:
            self._reply(200, data, headers)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        self._reply(206, part, headers)

    do_HEAD = do_GET  # noqa: N815  the base class's name

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Nothing."""

    def _listing(self) -> bytes:
        blobs = "".join(
            f"<Blob><Name>m/{name}</Name><Properties><Last-Modified>{formatdate(0, usegmt=True)}"
            f"</Last-Modified><Etag>{self.state}</Etag><Content-Length>{len(data)}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType>"
            "</Properties></Blob>"
            for name, data in FILES.items()
        )
        return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker /></EnumerationResults>".encode()

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def blobs() -> type[_Blobs]:
    return type("Blobs", (_Blobs,), {})


@pytest.fixture
def options(blobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStoreOptions]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), blobs)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}/account"
    extra = (("account_name", "account"), ("account_key", "a2V5"), ("endpoint", endpoint))
    yield ObjectStoreOptions(allow_http=True, extra=extra)
    server.shutdown()
    server.server_close()


def test_a_listed_etag_is_the_one_that_the_object_has(options: ObjectStoreOptions) -> None:
    listed = {info.uri: info.etag for info in list_under(f"{URI}/", options)}
    assert listed == {f"{URI}/{name}": head(f"{URI}/{name}", options).etag for name in FILES}
    assert set(listed.values()) == {'"0x8DC0FFEE"'}


def test_a_model_is_fetched(options: ObjectStoreOptions) -> None:
    manifest = read_manifest(URI, options)
    check_remote(manifest, options)
    with LocalModel(manifest, options) as model:
        folder = model.wait_whole()
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES


def test_a_model_that_was_replaced_is_refused(options: ObjectStoreOptions, blobs: Any) -> None:
    manifest = read_manifest(URI, options)
    blobs.state = "0x8DDECAF"
    with LocalModel(manifest, options) as model, pytest.raises(WeightsError, match="was replaced since"):
        model.wait_whole()


def test_a_model_is_fetched_with_a_sas_token(
    options: ObjectStoreOptions, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It signs nothing, and is itself what nodes need."""
    blobs.token = "user-token"
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=2022-11-02&sig=user-token")
    keyless = replace(options, extra=tuple(pair for pair in options.extra if pair[0] != "account_key"))
    manifest = read_manifest(URI, keyless)
    check_remote(manifest, keyless)
    with LocalModel(manifest, keyless) as model:
        folder = model.wait_whole()
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("scheme", ["az", "s3", "gs"])
def test_a_public_object_has_a_plain_address(scheme: str) -> None:
    extra = (("skip_signature", "true"), *((("account_name", "account"),) if scheme == "az" else ()))
    options = ObjectStoreOptions(region="eu-west-1", extra=extra)
    address = signed_url(f"{scheme}://bucket/a b/c", options)
    assert address.startswith("https://")
    assert address.endswith("/bucket/a%20b/c")
    assert "?" not in address
