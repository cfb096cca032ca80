"""The certificate of an API server, also of EKS, whose authorities have no key identifiers."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.api import KubeApi
from dray.errors import ClusterError
from tests.support.certificate import make_eks_certificate

pytestmark = pytest.mark.unit


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"items": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        pass


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of a server with such a certificate, whose authority is in ca.crt of the test's folder."""
    certificate = make_eks_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def of_python_3_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3 asks for the strict checks from that version on, and looks at nothing else."""
    monkeypatch.setattr("urllib3.util.ssl_.sys", SimpleNamespace(version_info=(3, 13, 0)))


def api(folder: Path, cluster: dict[str, Any]) -> KubeApi:
    """By a kubeconfig with these values of its cluster."""
    file = folder / "kubeconfig"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    file.write_text(json.dumps(config))
    found = KubeApi.of(KubeRayCluster(name="test", image="i", kubeconfig=str(file)))
    found._patience = 0.0
    return found


def test_the_authority_of_a_kubeconfig_is_enough(port: int, tmp_path: Path) -> None:
    one = api(
        tmp_path, {"server": f"https://127.0.0.1:{port}", "certificate-authority": f"{tmp_path}/ca.crt"}
    )
    assert one.clusters() == []


def test_without_one_those_of_the_machine_are_trusted(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/ca.crt")
    assert api(tmp_path, {"server": f"https://127.0.0.1:{port}"}).clusters() == []


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_server_that_is_not_to_be_checked_is_not(port: int, tmp_path: Path) -> None:
    one = api(tmp_path, {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True})
    assert one.clusters() == []


def test_an_unknown_authority_and_a_wrong_name_are_refused(port: int, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="certificate verify failed"):
        api(tmp_path, {"server": f"https://127.0.0.1:{port}"}).clusters()
    known = {"certificate-authority": f"{tmp_path}/ca.crt", "tls-server-name": "elsewhere"}
    with pytest.raises(ClusterError, match="elsewhere"):
        api(tmp_path, {"server": f"https://127.0.0.1:{port}", **known}).clusters()
