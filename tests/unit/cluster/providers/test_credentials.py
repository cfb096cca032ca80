"""Credentials that a user renews in a file while a job runs: the calls go on with the new ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dray.cluster.providers.ec2 import EC2Cluster
from dray.cluster.providers.ec2.api import Ec2Api
from dray.cluster.providers.kuberay import KubeRayCluster
from dray.cluster.providers.kuberay.provider import KubeRayProvider
from dray.errors import ConfigError

pytestmark = pytest.mark.unit

_EXPIRED = (
    b"<Response><Errors><Error><Code>ExpiredToken</Code><Message>m</Message></Error></Errors></Response>"
)
_NONE = b"<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"


class Service:
    """Takes calls that are signed with the key, or bear the token, ``taken``; notes which calls came."""

    def __init__(self) -> None:
        self.taken = "FIRST"
        self.calls: list[tuple[str, bool]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                taken = f"Credential={service.taken}/" in self.headers["Authorization"]
                self._answer(taken, 200 if taken else 400, _NONE if taken else _EXPIRED)

            def do_GET(self) -> None:
                taken = self.headers.get("Authorization") == f"Bearer {service.taken}"
                self._answer(taken, 200 if taken else 401, json.dumps({"items": []}).encode())

            def _answer(self, taken: bool, status: int, body: bytes) -> None:
                service.calls.append((self.command, taken))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file of AWS credentials, and the only place that has any."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    file = tmp_path / "credentials"
    write_keys(file, "FIRST")
    return file


def write_keys(file: Path, key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\naws_session_token=t\n")


def settings(service: Service, **changes: Any) -> EC2Cluster:
    return EC2Cluster(
        region="us-east-1",
        subnets=("subnet-0123456789abcdef0",),
        security_group="sg-0123456789abcdef0",
        instance_profile="dray-node-us-east-1",
        image="ami-0123456789abcdef0",
        endpoint=service.url,
        **changes,
    )


def test_keys_of_aws_that_a_user_renews_in_their_file_are_used(service: Service, keys: Path) -> None:
    api = Ec2Api.of(settings(service))
    assert api.instances("test") == []
    service.taken = "SECOND"
    write_keys(keys, "SECOND")
    api.tag(["i-1"], {"expires": "1"})
    assert [taken for _, taken in service.calls] == [True, False, True]
    assert api.instances("test") == []


def test_pages_of_aws_are_asked_for_again_with_renewed_keys(service: Service, keys: Path) -> None:
    api = Ec2Api.of(settings(service))
    service.taken = "SECOND"
    write_keys(keys, "SECOND")
    assert api.instances("test") == []
    assert [taken for _, taken in service.calls] == [False, True]


def test_expired_keys_are_read_again_at_most_every_few_seconds(
    service: Service, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 takes a third of a second of processor time for its clients, and a job asks all the time."""
    now = [1000.0]
    monkeypatch.setattr("dray.cluster.providers.ec2.api.time.monotonic", lambda: now[0])
    api = Ec2Api.of(settings(service))
    service.taken = "SECOND"
    for _ in range(3):
        with pytest.raises(ConfigError, match="have expired"):
            api.instances("test")
    assert len(service.calls) == 4
    write_keys(keys, "SECOND")
    now[0] += 60
    assert api.instances("test") == []


def test_keys_of_the_settings_are_not_read_again(service: Service, keys: Path) -> None:
    api = Ec2Api.of(settings(service, access_key_id="OLD", secret_access_key="s"))
    with pytest.raises(ConfigError, match="have expired"):
        api.instances("test")
    assert len(service.calls) == 1


def test_a_profile_that_no_file_has_is_named(
    service: Service, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(ConfigError, match=r"AWS: .*profile \(absent\) could not be found"):
        Ec2Api.of(settings(service))


def kubeconfig(folder: Path, service: Service) -> Path:
    file = folder / "kubeconfig"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": service.url}}],
        "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    file.write_text(json.dumps(config))
    (folder / "token").write_text("FIRST")
    return file


def test_a_token_of_kubernetes_that_a_user_renews_in_its_file_is_used(
    service: Service, tmp_path: Path
) -> None:
    file = kubeconfig(tmp_path, service)
    one = KubeRayProvider(KubeRayCluster(name="test", image="i", kubeconfig=str(file)))
    assert one.sweep() == ()
    service.taken = "SECOND"
    with pytest.raises(ConfigError, match="log in again"):
        one.sweep()
    (tmp_path / "token").write_text("SECOND")
    assert one.sweep() == ()
    assert [taken for _, taken in service.calls] == [True, False, False, False, True]
