"""Output folders on S3: both clients trust and send the same; a job that could not publish never starts."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError
from dray.job.beginning.opening import open_job
from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of
from dray.storage import ObjectStoreOptions, check_writable
from dray.storage.drafts import Drafts
from dray.storage.objects import forget_credentials
from tests.support.command import write_requests
from tests.support.s3_emulator import EmulatorProcess
from tests.support.s3_writes import uploads

pytestmark = pytest.mark.integration

OUTPUT = "s3://bucket/out"
KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    forget_credentials()
    yield
    forget_credentials()


# ---- an authority of the company's own ----


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    root = tmp_path_factory.mktemp("secure")
    (root / "bucket").mkdir()
    process = EmulatorProcess(root, tls=True)
    yield process
    process.stop()


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "AWS_CA_BUNDLE"])
def test_an_authority_that_one_variable_names_is_trusted_by_all_that_write(
    secure: EmulatorProcess, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(secure.certificate))
    folder = f"{OUTPUT}-{variable.lower()}"
    check_writable(folder, options=secure.options)
    with Drafts(folder, options=secure.options) as drafts:
        drafts.open("output.jsonl").write(b"{}\n")
        drafts.publish()
    assert (secure.root / folder.removeprefix("s3://") / "output.jsonl").read_bytes() == b"{}\n"
    assert uploads(secure.root) == []


def test_an_authority_that_no_variable_names_is_told_with_the_remedy(secure: EmulatorProcess) -> None:
    with pytest.raises(ConfigError, match=r"certificate is not trusted.*SSL_CERT_FILE"):
        check_writable(OUTPUT, options=secure.options)


def test_a_client_of_the_outputs_that_trusts_another_authority_is_seen_before_the_start(
    secure: EmulatorProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where AWS's own file of profiles names one: obstore does not read it."""
    (tmp_path / "config").write_text(f"[default]\nca_bundle = {_bundle_of_others()}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.certificate))
    with pytest.raises(ConfigError, match=r"report\.html: .*certificate is not trusted.*AWS_CA_BUNDLE"):
        check_writable(OUTPUT, options=secure.options)


def test_a_bundle_that_cannot_be_read_is_named(
    secure: EmulatorProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"AWS_CA_BUNDLE names .*none\.pem"):
        check_writable(OUTPUT, options=secure.options)


def _bundle_of_others() -> str:
    import certifi

    return certifi.where()


# ---- what the bucket's policy refuses ----


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    (tmp_path / "s3/bucket").mkdir(parents=True)
    process = EmulatorProcess(tmp_path / "s3")
    yield process
    process.stop()


def test_the_check_leaves_nothing(emulator: EmulatorProcess) -> None:
    check_writable(OUTPUT, options=emulator.options)
    assert [path for path in (emulator.root / "bucket").rglob("*") if path.is_file()] == []
    assert uploads(emulator.root) == []


@pytest.mark.parametrize("refused", ["uploads", "aborts"])
def test_a_job_that_could_not_publish_does_not_begin(
    emulator: EmulatorProcess, tmp_path: Path, refused: str
) -> None:
    emulator.behave(refuses=refused)
    write_requests(tmp_path / "in.jsonl", 3)
    settings = JobSettings(
        source=source_of([str(tmp_path / "in.jsonl")]),
        defaults=RowDefaults(),
        model="simulated",
        engine="simulated",
        output=OUTPUT,
        store_url=f"sqlite:///{tmp_path / 'dray.db'}",
        objects=emulator.options,
    )
    with pytest.raises(ConfigError, match=r"not allowed.*s3:AbortMultipartUpload.*AWS_SERVER_SIDE_ENC"):
        open_job(settings)
    assert not (tmp_path / "dray.db").exists()


# ---- what both clients send ----


class Recorder:
    """A bucket that takes everything and keeps nothing, but the headers of each request."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[str, str]] = {}
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                what = f"{self.command} {'upload' if 'upload' in self.path else 'object'}"
                recorder.sent[what] = {name.lower(): value for name, value in self.headers.items()}
                self.send_response(404 if self.command == "HEAD" else 200)
                body = ANSWERS.get(what, b"") if self.command == "POST" else b""
                self.send_header("ETag", '"e"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815  the base class's names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


ANSWERS = {
    "POST upload": b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>",
    "POST object": b"<DeleteResult><Deleted><Key>out/.dray/write-check</Key></Deleted></DeleteResult>",
}
"""S3's bodies: obstore removes objects by a list of them."""


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.stop()


KMS = {"server_side_encryption": "aws:kms", "sse_kms_key_id": "mine", "sse_bucket_key_enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"server_side_encryption": "AES256"}, 1),
        (KMS, 3),
        ({"server_side_encryption": "sse-c", "sse_customer_key_base64": KEY}, 3),
        ({"request_payer": "true"}, 1),
        ({"request_payer": "requester"}, 1),
        ({"request_payer": "false"}, 0),
        ({"sse_kms_key_id": "mine"}, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["environment", "options"])
def test_both_clients_send_what_obstore_is_told(
    recorder: Recorder, settings: dict[str, str], sent: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"extra": tuple(settings.items())} if place == "options" else {}
    for name, value in settings.items() if place == "environment" else ():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    options = ObjectStoreOptions(
        endpoint=recorder.url,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        allow_http=True,
        **given,
    )
    check_writable(OUTPUT, options=options)
    of_objects, of_uploads = (_own(recorder.sent[what]) for what in ("PUT object", "POST upload"))
    assert of_uploads == of_objects
    assert len(of_uploads) == sent
    payer = {name: value for name, value in of_objects.items() if name == "x-amz-request-payer"}
    assert payer.items() <= _own(recorder.sent["DELETE upload"]).items()
    customer = {name: value for name, value in of_objects.items() if "-customer-" in name}
    assert customer.items() <= _own(recorder.sent["HEAD object"]).items()


def _own(headers: dict[str, str]) -> dict[str, str]:
    """Headers of encryption and of who pays."""
    return {name: value for name, value in headers.items() if "encryption" in name or "payer" in name}
