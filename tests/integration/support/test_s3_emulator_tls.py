"""The emulator speaks TLS to clients that trust its certificate, and misbehaves there too."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from obstore.store import S3Store

from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration

DATA = os.urandom(3_000_000)
BODY = "model/weights.bin"
OBJECT = f"/bucket/{BODY}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    folder = tmp_path_factory.mktemp("objects")
    (folder / "bucket/model").mkdir(parents=True)
    (folder / "bucket" / BODY).write_bytes(DATA)
    server = EmulatorProcess(folder, tls=True, processes=2)
    yield server
    server.stop()
    assert not server.certificate.exists()


def _get(server: EmulatorProcess, context: ssl.SSLContext, host: str = "127.0.0.1", **headers: str) -> bytes:
    port = int(server.url.rsplit(":", 1)[1])
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=10)
    connection.request("GET", OBJECT, headers=headers)
    try:
        return connection.getresponse().read()
    except http.client.IncompleteRead as error:
        return error.partial
    finally:
        connection.close()


@pytest.fixture
def trusting(server: EmulatorProcess) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(server.certificate))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's default from 3.13 on
    return context


def test_who_trusts_it_reads_it(server: EmulatorProcess, trusting: ssl.SSLContext) -> None:
    server.behave()
    assert server.url.startswith("https://127.0.0.1:")
    for host in ("127.0.0.1", "localhost"):
        assert _get(server, trusting, host) == DATA
    assert _get(server, trusting, Range="bytes=7-700006") == DATA[7:700_007]
    assert server.served() == {OBJECT[1:]: 2 * len(DATA) + 700_000}
    with pytest.raises(ssl.SSLCertVerificationError):
        _get(server, ssl.create_default_context())


@pytest.mark.parametrize(
    ("behaviour", "length", "wrong"),
    [
        ({"cut_share": 1}, 500_000, 0),
        ({"corrupt_share": 1}, 1_000_000, 1),
        ({"connection_rate": 1e7}, 1_000_000, 0),
    ],
)
def test_it_misbehaves(
    server: EmulatorProcess, trusting: ssl.SSLContext, behaviour: dict[str, Any], length: int, wrong: int
) -> None:
    server.behave(**behaviour)
    body = _get(server, trusting, Range="bytes=1000000-1999999")
    assert len(body) == length
    assert sum(a != b for a, b in zip(body, DATA[1_000_000:], strict=False)) == wrong


def test_a_client_that_others_wrote_reads_it(server: EmulatorProcess) -> None:
    server.behave()
    client = S3Store(
        "bucket",
        endpoint=server.url,
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"root_certificate": server.certificate.read_bytes()},
    )
    assert client.get(BODY).bytes() == DATA


TRUSTED_BY_ENVIRONMENT = """
import sys
from dray.storage import ObjectStoreOptions
from dray.storage.objects import head
keys = dict(access_key_id="key", secret_access_key="secret")
options = ObjectStoreOptions(endpoint=sys.argv[1], region="us-east-1", **keys)
print(head("s3://bucket/model/weights.bin", options).size)
"""


def test_the_environment_can_make_it_trusted(server: EmulatorProcess) -> None:
    server.behave()
    ended = subprocess.run(
        [sys.executable, "-c", TRUSTED_BY_ENVIRONMENT, server.url],
        env={**os.environ, "SSL_CERT_FILE": str(server.certificate)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.returncode) == (f"{len(DATA)}\n", 0), ended.stderr
