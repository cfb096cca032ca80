"""Models in stores that others wrote, on web servers, and in repositories laid out as on the hub."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dray.errors import ConfigError, WeightsError
from dray.planner.workload.mistral import reads_mistrals
from dray.storage import ObjectStoreOptions
from dray.weights import LocalModel, check_remote, read_manifest
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.source.checkpoint import INDEX
from dray.weights.source.configuration import configuration_of
from dray.weights.source.manifest import PUBLISHED, Manifest
from dray.weights.source.publish import publish
from tests.support.checkpoints import Stored, sharded, write_file
from tests.support.s3 import S3Server
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three shards, an index, and a file that it does not name."""
    return sharded(tmp_path / "model")


def _fetch(uri: str, options: ObjectStoreOptions | None, original: Path) -> Manifest:
    manifest = read_manifest(uri, options)
    check_remote(manifest, options)
    with LocalModel(manifest, options) as local:
        folder = local.wait_whole()
        for file in manifest.files:
            assert (folder / file.name).read_bytes() == (original / file.name).read_bytes()
    assert {INDEX, "config.json"} < {file.name for file in manifest.files}
    assert "consolidated.safetensors" not in {file.name for file in manifest.files}
    return manifest


# ---- moto's server ----


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def test_a_bucket_of_moto(s3: S3Server, model: Path) -> None:
    client = s3.bucket("models")
    for file in model.iterdir():
        client.put_object(Bucket="models", Key=f"llama/{file.name}", Body=file.read_bytes())
    client.put_object(Bucket="models", Key="llama/old//odd", Body=b"x")  # in another folder
    uri = "s3://models/llama"
    plain = _fetch(uri, s3.options, model)
    published = publish(uri, s3.options)
    assert published.path == f"{uri}/{PUBLISHED}"
    verified = _fetch(uri, s3.options, model)
    assert all(file.digests for file in verified.files)
    assert verified.key != plain.key  # what was not verified does not count as what is


def test_a_public_bucket_is_read_without_credentials(
    s3: S3Server, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = s3.client()
    client.create_bucket(Bucket="public", ACL="public-read")
    for file in model.iterdir():
        client.put_object(Bucket="public", Key=f"m/{file.name}", Body=file.read_bytes(), ACL="public-read")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    options = replace(s3.options, access_key_id=None, secret_access_key=None)
    _fetch("s3://public/m", options, model)


def test_a_plan_reads_no_weights(s3: S3Server, model: Path) -> None:
    client = s3.bucket("plans")
    for file in model.iterdir():
        client.put_object(Bucket="plans", Key=f"llama/{file.name}", Body=file.read_bytes())
    with configuration_of("s3://plans/llama", s3.options) as folder:
        assert folder.name == "llama"
        names = {file.name for file in folder.iterdir()}
        assert (folder / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert names == {file.name for file in model.iterdir() if file.suffix != ".safetensors"}
    assert not folder.exists()


def test_a_plan_reads_prompts_with_the_tokenizer_of_the_run(s3: S3Server, model: Path) -> None:
    """A model in both formats: the engine takes Mistral's tokenizer, though none of its weights is read."""
    client = s3.bucket("both")
    for file in model.iterdir():
        client.put_object(Bucket="both", Key=f"m/{file.name}", Body=file.read_bytes())
    client.put_object(Bucket="both", Key="m/consolidated.safetensors", Body=b"weights")
    with configuration_of("s3://both/m", s3.options) as folder:
        assert not reads_mistrals(folder, "auto")
    client.put_object(Bucket="both", Key="m/tekken.json", Body=b"{}")
    with configuration_of("s3://both/m", s3.options) as folder:
        assert reads_mistrals(folder, "auto")
        assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) == 0


# ---- an embedding model, with folders for its modules and its named templates ----


@pytest.fixture
def embedder(model: Path) -> Path:
    """Beside the shards: a pooling, a layer behind it with weights of its own, and a template for tools."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    for path in ("1_Pooling", "2_Dense", "4_Other"):
        (model / path).mkdir()
        (model / path / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    write_file(model / "2_Dense/model.safetensors", {"linear.weight": Stored("F32", (2, 2), bytes(16))})
    (model / "additional_chat_templates").mkdir()
    for name in ("tool_use.jinja", "notes.md"):
        (model / "additional_chat_templates" / name).write_text("{{ tools }}")
    return model


def _modules_arrive(uri: str, options: ObjectStoreOptions | None, original: Path) -> None:
    manifest = _fetch(uri, options, original)
    with LocalModel(manifest, options) as local:
        folder = local.wait_engine()  # what an engine reads for itself is whole there
        found = {str(file.relative_to(folder)) for file in folder.rglob("*/*")}
        assert found == {
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "additional_chat_templates/tool_use.jinja",
        }
        for name in found:
            assert (folder / name).read_bytes() == (original / name).read_bytes()
    with configuration_of(uri, options) as folder:
        assert (folder / "1_Pooling/config.json").is_file()
        assert (folder / "additional_chat_templates/tool_use.jinja").is_file()


def test_modules_of_a_bucket_that_was_published(s3: S3Server, embedder: Path) -> None:
    client = s3.bucket("embedders")
    for file in embedder.rglob("*"):
        if file.is_file():
            key = f"m/{file.relative_to(embedder)}"
            client.put_object(Bucket="embedders", Key=key, Body=file.read_bytes())
    uri = "s3://embedders/m"
    _modules_arrive(uri, s3.options, embedder)
    publish(uri, s3.options)
    assert all(file.digests for file in read_manifest(uri, s3.options).files)
    _modules_arrive(uri, s3.options, embedder)
    assert publish(str(embedder)).files == len(read_manifest(uri, s3.options).files)


def test_modules_of_a_web_server(emulator: EmulatorProcess, embedder: Path) -> None:
    shutil.copytree(embedder, emulator.root / "models/m")
    _modules_arrive(f"{emulator.url}/models/m", None, embedder)


def test_modules_of_a_hub(hub: EmulatorProcess, embedder: Path) -> None:
    shutil.copytree(embedder, hub.root / "hub/org/embedder")
    _modules_arrive("hf://org/embedder", None, embedder)


# ---- TLS, and a proxy ----


@pytest.fixture
def secure(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorProcess]:
    shutil.copytree(model, tmp_path / "secure/bucket/llama")
    found = EmulatorProcess(tmp_path / "secure", tls=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(found.certificate))
    yield found
    found.stop()


def test_tls_with_a_certificate_of_ones_own(secure: EmulatorProcess, model: Path) -> None:
    assert secure.url.startswith("https://")
    _fetch("s3://bucket/llama", secure.options, model)


def test_tls_with_the_bundle_that_aws_clients_know(
    secure: EmulatorProcess, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(secure.certificate))
    _fetch("s3://bucket/llama", secure.options, model)


def test_a_certificate_that_nobody_vouches_for_is_refused(
    secure: EmulatorProcess, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest("s3://bucket/llama", secure.options)
    monkeypatch.delenv("SSL_CERT_FILE")
    with LocalModel(manifest, secure.options) as local, pytest.raises(WeightsError, match="is not trusted"):
        local.wait_whole()


def test_https_goes_by_the_proxy_that_the_environment_names(
    secure: EmulatorProcess, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest("s3://bucket/llama", secure.options)
    with ConnectProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        with LocalModel(manifest, secure.options) as local:
            local.wait_whole()
        assert proxy.tunnels
        assert set(proxy.tunnels) == {secure.url.removeprefix("https://")}


class ConnectProxy:
    """A proxy that knows CONNECT alone; ``tunnels`` are the places that were asked for."""

    def __init__(self) -> None:
        self.tunnels: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> ConnectProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += near.recv(1)
        method, place, _ = head.split(b"\r\n")[0].decode().split()
        assert method == "CONNECT"
        self.tunnels.append(place)
        host, _, port = place.rpartition(":")
        far = socket.create_connection((host, int(port)))
        near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=_pump, args=(far, near), daemon=True).start()
        _pump(near, far)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


# ---- a web server ----


class _Quiet(SimpleHTTPRequestHandler):
    """Python's own server knows no ranges."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def plain_web(model: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(model)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    (tmp_path / "origin").mkdir()
    found = EmulatorProcess(tmp_path / "origin")
    yield found
    found.stop()


def test_a_web_server_with_etags(emulator: EmulatorProcess, model: Path) -> None:
    shutil.copytree(model, emulator.root / "models/llama")
    _fetch(f"{emulator.url}/models/llama", None, model)


@pytest.mark.heavy
def test_a_web_server_without_ranges_is_refused(plain_web: str) -> None:
    with pytest.raises(ConfigError, match="Range request not supported"):
        read_manifest(plain_web)


def test_nothing_can_be_published_on_a_web_server() -> None:
    with pytest.raises(ConfigError, match="nothing can be written there"):
        publish("https://example.org/model")


# ---- a hub ----


@pytest.fixture
def hub(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorProcess]:
    shutil.copytree(model, tmp_path / "hub-root/hub/org/llama")
    found = EmulatorProcess(tmp_path / "hub-root")
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nobody"))
    yield found
    found.stop()


def test_a_repository_of_a_hub_is_pinned_to_its_commit(hub: EmulatorProcess, model: Path) -> None:
    manifest = _fetch("hf://org/llama", None, model)
    assert manifest.uri.startswith("hf://org/llama@")
    assert _fetch(manifest.uri, None, model).key == manifest.key
    for file in manifest.files:
        if file.is_weights:
            assert file.sha256 == hashlib.sha256((model / file.name).read_bytes()).hexdigest()


def test_a_hub_that_sends_other_bytes_is_found_out(hub: EmulatorProcess, model: Path, cache: Path) -> None:
    manifest = read_manifest("hf://org/llama")
    hub.behave(corrupt_share=1.0)
    with LocalModel(manifest) as local, pytest.raises(WeightsError, match=r"SHA-256|not valid|safetensors"):
        local.wait_whole()
    assert not (cache / manifest.key).exists()
    assert not (cache / f"{manifest.key}.engine").exists()


def test_a_hub_that_wants_a_token(hub: EmulatorProcess, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.behave(access_key="secret-token")
    with pytest.raises(ConfigError, match="not for us to read"):
        read_manifest("hf://org/llama")
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    _fetch("hf://org/llama", None, model)


@pytest.mark.parametrize("uri", ["hf://llama", "hf://a/b/c", "hf://../x", "hf://org/llama@"])
def test_what_is_no_repository(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"write it as hf://ORG/NAME|no such repository|does not answer"):
        read_manifest(uri)


@pytest.mark.heavy(one_of=3)
def test_a_repository_that_is_not_there(hub: EmulatorProcess) -> None:
    with pytest.raises(ConfigError, match="no such repository or revision"):
        read_manifest("hf://org/other")
