"""The emulator is S3 to a client that others wrote, and misbehaves as it is told."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

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
