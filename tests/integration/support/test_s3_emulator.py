"""The emulator is S3 to a client that others wrote, and misbehaves as it is told."""

from __future__ import annotations

import errno
import http.client
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from dray.storage.objects import store_of
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration

DATA = os.urandom(3_000_000)
BODY = "model/weights.bin"


class Server(EmulatorProcess):
    """The emulator's process, with plain requests."""

    def get(self, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One plain request for the object; what came, even if it is too little."""
        request = urllib.request.Request(f"{self.url}/bucket/{BODY}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                try:
                    return answer.status, dict(answer.headers), answer.read()
                except http.client.IncompleteRead as error:
                    return answer.status, dict(answer.headers), error.partial
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("objects")
    (folder / "bucket/model").mkdir(parents=True)
    (folder / "bucket" / BODY).write_bytes(DATA)
    for number in range(25):
        (folder / f"bucket/model/part {number:02d}&.txt").write_text(str(number))
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.stop()


@pytest.fixture
def server(running: Server) -> Server:
    running.ask("PUT", "behaviour", {})
    running.ask("POST", "forget")
    return running


@pytest.fixture
def client(server: Server) -> S3Store:
    return S3Store(
        "bucket",
        endpoint=server.url,
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True},
    )


def test_a_client_that_others_wrote_reads_it(client: S3Store, server: Server) -> None:
    listed = [item["path"] for page in client.list("model/", chunk_size=10) for item in page]
    assert len(listed) == 26
    assert "model/part 07&.txt" in listed
    assert client.head(BODY)["size"] == len(DATA)
    assert client.get(BODY).bytes() == DATA
    assert client.get_range(BODY, start=1_000, length=2_000) == DATA[1_000:3_000]
    deadline = time.monotonic() + 5  # bytes are counted once they are sent
    while server.ask("GET", "served")["served"] != {f"bucket/{BODY}": len(DATA) + 2_000}:
        assert time.monotonic() < deadline
    with pytest.raises(FileNotFoundError):
        client.head("model/nothing")


def test_no_body_comes_with_a_refused_head(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1]), timeout=10)
    for _ in range(2):  # the second one would read the first one's body
        connection.request("HEAD", "/bucket/nothing")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (404, b"")
    connection.close()


def test_a_changed_object_fails_its_condition(client: S3Store, folder: Path) -> None:
    path = folder / "bucket/changing"
    path.write_bytes(b"one")
    etag = client.head("changing")["e_tag"]
    assert client.get("changing", options={"if_match": etag}).bytes() == b"one"
    path.write_bytes(b"other")
    with pytest.raises(obstore.exceptions.PreconditionError):
        client.get("changing", options={"if_match": etag})
    path.unlink()


@pytest.mark.parametrize(
    ("behaviour", "status", "length", "equal"),
    [
        ({"busy_share": 1}, 503, None, False),
        ({"cut_share": 1}, 206, 500_000, True),
        ({"short_share": 1}, 206, 500_000, True),
        ({"corrupt_share": 1}, 206, 1_000_000, False),
        ({"whole_share": 1}, 200, 3_000_000, False),
        ({"access_key": "another"}, 403, None, False),
        ({"expires_after": 0}, 403, None, False),
    ],
)
def test_it_misbehaves(
    server: Server, behaviour: dict[str, Any], status: int, length: int | None, equal: bool
) -> None:
    server.ask("PUT", "behaviour", behaviour)
    found, _, body = server.get(Range="bytes=1000000-1999999")
    assert found == status
    if length is not None:
        assert len(body) == length
        assert (body == DATA[1_000_000 : 1_000_000 + length]) is equal
    if "corrupt_share" in behaviour:
        assert sum(a != b for a, b in zip(body, DATA[1_000_000:2_000_000], strict=True)) == 1


def test_content_range_of_another_range(server: Server) -> None:
    server.ask("PUT", "behaviour", {"elsewhere_share": 1})
    _, headers, _ = server.get(Range="bytes=0-9")
    assert headers["Content-Range"] == f"bytes 1-10/{len(DATA)}"


@pytest.mark.parametrize(
    ("behaviour", "seconds"),
    [
        ({"connection_rate": 3e6}, 1.0),
        ({"node_rate": 3e6}, 1.0),
        ({"first_byte_seconds": 0.5}, 0.5),
        ({"slow_share": 1, "slow_rate": 3e6}, 1.0),
    ],
)
def test_it_takes_its_time(server: Server, behaviour: dict[str, Any], seconds: float) -> None:
    server.ask("PUT", "behaviour", behaviour)
    began = time.monotonic()
    assert server.get()[2] == DATA
    assert time.monotonic() - began > 0.8 * seconds


def test_nothing_outside_its_folder(server: Server, folder: Path) -> None:
    (folder.parent / "secret").write_text("secret")
    request = urllib.request.Request(f"{server.url}/bucket/../../secret")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(request, timeout=5)


def test_a_link_is_followed(server: Server, folder: Path, client: S3Store) -> None:
    (folder / "bucket/link").symlink_to(folder / "bucket" / BODY)
    assert client.get_range("link", start=5, length=5) == DATA[5:10]
    assert server.served() == {"bucket/link": 5}
    (folder / "bucket/link").unlink()


def _listed_etag(client: S3Store) -> str | None:
    return {item["path"]: item["e_tag"] for item in client.list("model/").collect()}[BODY]


def test_an_object_is_replaced_while_it_is_read(server: Server, client: S3Store) -> None:
    etag = client.head(BODY)["e_tag"]
    server.behave(changes_after=2)
    assert _listed_etag(client) == etag  # a listing is no request for an object
    for start in (0, 10):
        part = client.get(BODY, options={"if_match": etag, "range": (start, start + 10)}).bytes()
        assert part == DATA[start : start + 10]
    with pytest.raises(obstore.exceptions.PreconditionError):
        client.get(BODY, options={"if_match": etag})
    changed = _listed_etag(client)
    assert changed != etag
    assert client.get(BODY, options={"if_match": changed}).bytes() == DATA
    server.behave()
    assert client.head(BODY)["e_tag"] == etag


def _presigned(server: Server, key: str = BODY) -> str:
    store, path = store_of(f"s3://bucket/{key}", server.options)
    assert isinstance(store, S3Store)
    address: str = obstore.sign(store, "GET", path, timedelta(minutes=5))
    return address


def _fetch(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_presigned_url_is_as_good_as_signed_headers(server: Server, folder: Path) -> None:
    (folder / "bucket/what? & where.bin").write_bytes(b"odd name")
    url = _presigned(server)
    server.ask("PUT", "behaviour", {"access_key": "key"})
    assert _fetch(url, Range="bytes=10-19") == (206, DATA[10:20])
    assert _fetch(_presigned(server, "what? & where.bin")) == (200, b"odd name")
    assert _fetch(url.split("?")[0])[0] == 403
    server.ask("PUT", "behaviour", {"access_key": "another"})
    status, body = _fetch(url)
    assert (status, b"<Code>InvalidAccessKeyId</Code>" in body) == (403, True)
    (folder / "bucket/what? & where.bin").unlink()


def test_a_presigned_url_has_its_time(server: Server) -> None:
    late = re.sub(r"X-Amz-Date=\w+", "X-Amz-Date=20250101T000000Z", _presigned(server))
    status, body = _fetch(late)
    assert status == 403
    assert b"<Code>AccessDenied</Code><Message>Request has expired</Message>" in body
    assert _fetch(re.sub(r"X-Amz-Expires=\d+", "X-Amz-Expires=999999999", late))[0] == 200
    for name in ("Algorithm", "Date", "Expires", "SignedHeaders", "Signature"):
        status, body = _fetch(re.sub(rf"&?X-Amz-{name}=[^&]*", "", _presigned(server)))
        assert (status, b"AuthorizationQueryParametersError" in body) == (400, True), name


@pytest.fixture(scope="module")
def several(folder: Path) -> Iterator[Server]:
    server = Server(folder, processes=3)
    yield server
    server.stop()


def _at_once(server: Server, count: int) -> Counter[int]:
    """How often which status came."""
    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(lambda _: server.get(Range="bytes=0-99999")[0], range(count)))


def test_several_processes_are_one_server(several: Server) -> None:
    several.behave()
    several.ask("POST", "forget")
    assert len({several.ask("GET", "served")["process"] for _ in range(50)}) == 3
    assert _at_once(several, 60) == {206: 60}
    assert several.served() == {f"bucket/{BODY}": 60 * 100_000}
    assert several.ask("GET", "served")["requests"] == 60
    several.behave(expires_after=20)
    assert _at_once(several, 60) == {206: 20, 403: 40}
    assert several.served() == {f"bucket/{BODY}": 20 * 100_000}
    several.behave(node_rate=2e6)
    began = time.monotonic()
    assert _at_once(several, 20) == {206: 20}
    assert time.monotonic() - began > 0.8


def test_objects_are_counted_whoever_names_them_first(several: Server) -> None:
    several.behave()
    names = [f"bucket/model/part%20{number:02d}%26.txt" for number in range(25)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: _fetch(f"{several.url}/{name}"), names * 4))
    assert {status for status, _ in found} == {200}
    sizes = {f"bucket/model/part {number:02d}&.txt": 4 * len(str(number)) for number in range(25)}
    assert several.served() == sizes


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_several_processes_end_together(folder: Path, end: str) -> None:
    server = Server(folder, processes=3)
    if end == "killed":
        server._process.kill()
    server.stop()
    address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    deadline = time.monotonic() + 10
    while _connects(address) != errno.ECONNREFUSED:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _connects(address: tuple[str, int]) -> int:
    with socket.socket() as connection:
        return connection.connect_ex(address)
