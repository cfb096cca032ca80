"""Whether Prefect is told where its API is."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dray.cli.doctor import _prefect_api
from dray.cli.server import PrefectServer, configured, configured_url, silence_of
from dray.cli.with_prefect import _despite, _server
from dray.errors import DrayError
from dray.job import current_job

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    monkeypatch.chdir(tmp_path)


def test_nothing_is_configured() -> None:
    assert not configured()


def test_the_server_of_a_run_has_a_port_that_no_connection_takes_while_it_starts() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(PrefectServer().port < first for _ in range(5))


def test_what_prefect_writes_of_exceptions_goes_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefectServer, "start", lambda server: None)
    with _server():
        results = Path(os.environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"])
        (results / "exception").write_text("pickled")
    assert not results.exists()
    assert "PREFECT_RESULTS_LOCAL_STORAGE_PATH" not in os.environ


def test_a_run_needs_no_proxy_to_reach_its_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container gets HTTP_PROXY of its host, and seldom a NO_PROXY that names 127.0.0.1."""
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(PrefectServer, "start", lambda server: None)
    with _answering(403) as proxy:
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/api"))
        with _server():
            assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "127.0.0.1"
        assert "NO_PROXY" not in os.environ
        with _answering(200) as url:
            server = PrefectServer(int(url.removesuffix("/api").rpartition(":")[2]))
            monkeypatch.setattr(server, "_process", subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE))
            with tempfile.TemporaryFile() as server._log:
                try:
                    server.wait(5)
                finally:
                    server.stop()


def test_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert configured()
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert not configured()


def test_by_a_profile(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('active = "local"\n[profiles.local]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n')
    assert configured()


@pytest.mark.parametrize(
    "text",
    [
        'active = "ephemeral"\n[profiles.ephemeral]\nPREFECT_SERVER_ALLOW_EPHEMERAL_MODE = "true"\n',
        'active = "a"\n[profiles.a]\n[profiles.b]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n',
        'active = "a"\n[profiles.a]\n# PREFECT_API_URL = "http://127.0.0.1:4200/api"\n',
    ],
)
def test_a_profile_that_does_not_say_it_or_is_not_active(tmp_path: Path, text: str) -> None:
    (tmp_path / "profiles.toml").write_text(text)
    assert not configured()


def test_the_profile_that_the_environment_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'active = "a"\n[profiles.a]\n[profiles.b]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n'
    (tmp_path / "profiles.toml").write_text(text)
    monkeypatch.setenv("PREFECT_PROFILE", "b")
    assert configured()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".env", "# ours\nexport PREFECT_API_URL='http://127.0.0.1:4300/api'\n"),
        ("prefect.toml", '[api]\nurl = "http://127.0.0.1:4300/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://127.0.0.1:4300/api"\n'),
    ],
)
def test_by_a_file_of_the_working_folder(
    file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private server was started, and the run never came to the user's."""
    profiles = 'active = "a"\n[profiles.a]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n'
    (tmp_path / "profiles.toml").write_text(profiles)
    (tmp_path / file).write_text(text)
    assert configured_url() == "http://127.0.0.1:4300/api"
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4400/api")
    assert configured_url() == "http://127.0.0.1:4400/api"


def test_a_file_that_says_nothing_of_the_api_or_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER=1\n")
    (tmp_path / "prefect.toml").write_text("api = 3\n")
    (tmp_path / "pyproject.toml").write_text("[tool\n")
    assert not configured()


def test_an_environment_file_in_another_encoding_is_prefects_to_refuse(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes("NAME=Jürgen\n".encode("latin-1"))
    assert configured_url() is None


def test_a_profile_in_another_file(tmp_path: Path) -> None:
    text = 'active = "a"\n[profiles.a]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n'
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / ".env").write_text(f"PREFECT_PROFILES_PATH={tmp_path / 'mine.toml'}\n")
    assert configured_url() == "http://127.0.0.1:4200/api"


@contextmanager
def _answering(code: int) -> Iterator[str]:
    """Where a server answers its health with this code."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/api/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/api"


@pytest.mark.parametrize(("code", "told"), [(200, None), (401, None), (404, "HTTP 404"), (503, "HTTP 503")])
def test_what_a_server_answers(code: int, told: str | None) -> None:
    with _answering(code) as url:
        found = silence_of(url)
    assert found is None if told is None else told in (found or "")


def test_doctor_asks_the_server_that_is_configured(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _prefect_api() == "none configured: a run starts its own"
    with _answering(200) as url:
        monkeypatch.setenv("PREFECT_API_URL", url)
        assert _prefect_api() == f"{url} answers"
    monkeypatch.setenv("PREFECT_API_URL", nobody.replace("//", "//me:secret@"))
    with pytest.raises(LookupError) as refused:
        _prefect_api()
    assert str(refused.value).startswith(
        f"{nobody} does not answer (Connection refused): start that server, or"
    )


def test_a_run_says_what_to_do_without_it(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_job, "_driven", [])
    monkeypatch.setenv("PREFECT_API_URL", nobody)
    with pytest.raises(
        DrayError, match=r"ConnectError: away; .* does not answer: start .* dray starts its own"
    ):
        _despite(type("ConnectError", (Exception,), {})("away"))
