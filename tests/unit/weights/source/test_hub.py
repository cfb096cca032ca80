"""A hub that redirects, that is busy for a moment, and one that is none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from dray.errors import ConfigError, WeightsError
from dray.storage import hub_http, retries
from dray.weights import LocalModel, check_remote, read_manifest
from dray.weights.fetch import fetcher
from dray.weights.node import local
from dray.weights.node.cache import READY
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.source import hub
from dray.weights.source.manifest import Manifest, ModelFile
from tests.support.small_web import Web

pytestmark = pytest.mark.unit

TOKEN = "hub-token"
HEADER = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
FILES = {"config.json": b"{}", "model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + b"abcd"}
INFO = {"sha": "c0ffee", "siblings": [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]}


@pytest.fixture
def webs() -> Iterator[list[Web]]:
    with ExitStack() as stack:
        made = [Web(), Web()]
        for web in made:
            stack.callback(web.stop)
        yield made


@pytest.fixture
def web(webs: list[Web], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Web:
    """The hub, with a repository."""
    monkeypatch.setenv("HF_ENDPOINT", webs[0].url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    webs[0].pages["/api/models/org/m/revision/main"] = json.dumps(INFO).encode()
    webs[0].pages |= {f"/org/m/resolve/c0ffee/{name}": data for name, data in FILES.items()}
    return webs[0]


def _manifest(repository: hub.Repository) -> Manifest:
    return Manifest(uri=repository.uri, files=tuple(repository.files.values()))


def test_a_repository_that_was_renamed_is_found(web: Web) -> None:
    web.pages["/api/models/org/old/revision/main"] = "/api/models/org/m/revision/main?blobs=true"
    for name in FILES:
        web.pages[f"/org/old/resolve/c0ffee/{name}"] = f"/org/m/resolve/c0ffee/{name}"
    found = hub.look("hf://org/old")
    assert found.uri == "hf://org/old@c0ffee"
    assert {name: hub.read(file, 0, file.size) for name, file in found.files.items()} == FILES
    assert {token for _, token in web.tokens} == {f"Bearer {TOKEN}"}
    with LocalModel(_manifest(found)) as model:
        folder = model.wait_whole()
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES


def test_the_token_stays_at_the_hub(web: Web, webs: list[Web]) -> None:
    other = webs[1]
    api, file = "/api/models/org/m/revision/main", "/org/m/resolve/c0ffee/config.json"
    other.pages = {"/moved": web.pages[api], "/stored": b"{}"}
    web.pages |= {api: f"{other.url}/moved", file: f"{other.url}/stored"}
    found = hub.look("hf://org/m")
    assert hub.address(found.files["config.json"]) == (f"{other.url}/stored", {})
    assert hub.read(found.files["config.json"], 0, 2) == b"{}"
    assert set(other.tokens) == {("/moved", None), ("/stored", None)}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>Sign in to the network</html>", "is no hub"),
        (b"\xff\xfe", "is no hub"),
        (b"[]", "is no hub"),
        (b'{"sha": "c0ffee"}', "is no hub"),
        (b'{"sha": "c0ffee", "siblings": [{"rfilename": "config.json", "size": null}]}', "is no hub"),
        (b"[" * 100_000, "is no hub"),
        ("/api/models/org/m/revision/main", "redirected again and again"),
        ("file:///etc/hostname", "does not answer: redirected to file:"),
        ("http://169.254.169.254/latest", "metadata service"),
        (503, "does not answer: .*HTTP 503"),
        (403, "not for us to read"),
        (404, "no such repository"),
    ],
)
def test_what_is_no_answer_of_a_hub_is_refused(web: Web, answer: bytes | str | int, says: str) -> None:
    web.pages["/api/models/org/m/revision/main"] = answer
    with pytest.raises(ConfigError, match=says):
        hub.look("hf://org/m")


def test_a_hub_that_is_out_of_reach_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-hub.invalid")
    monkeypatch.setattr(hub, "with_retries", lambda call: call())
    with pytest.raises(ConfigError) as refused:
        hub.look("hf://org/m")
    told = str(refused.value)
    assert told.count("hf://org/m") == 1
    assert "Errno" not in told
    assert told.endswith("give the folder of a copy, or a mirror's address in HF_ENDPOINT")


def test_a_hub_that_is_busy_when_it_is_looked_at_is_asked_again(web: Web) -> None:
    web.busy = lambda path: 429 if web.asked[path] <= 3 else None
    assert set(hub.look("hf://org/m").files) == set(FILES)


@pytest.mark.parametrize("status", [429, 500, 503, 418])
def test_a_hub_that_is_away_for_a_moment_is_lived_with(web: Web, status: int) -> None:
    """Each of its first addresses is refused four times."""
    manifest = _manifest(hub.look("hf://org/m"))
    web.busy = lambda path: status if web.asked[path] <= 4 else None
    with LocalModel(manifest) as model:
        folder = model.wait_whole()
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert model.outcome is not None
    assert set(model.outcome.faults) == {"network" if status == 418 else "busy"}


@pytest.mark.parametrize(
    ("status", "kind", "says"), [(403, 2, "not allowed: .*HF_TOKEN"), (404, 1, "no such object: hf://")]
)
def test_a_file_that_is_refused_fails_at_once(web: Web, status: int, kind: int, says: str) -> None:
    manifest = _manifest(hub.look("hf://org/m"))
    place = "/org/m/resolve/c0ffee/model.safetensors"
    web.pages[place] = status
    with LocalModel(manifest) as model, pytest.raises(WeightsError, match=says):
        model.wait_whole()
    assert web.asked[place] == kind


def test_a_file_that_moves_between_two_looks_is_not_taken_for_its_redirect(web: Web) -> None:
    file = ModelFile(name="config.json", size=2, etag="", url=f"{web.url}/moving")
    web.pages["/moving"] = b"{}"
    web.busy = lambda path: 302 if web.asked[path] > 1 else None
    with pytest.raises(OSError, match="elsewhere by now"):
        hub.read(file, 0, 2)


def test_a_token_with_a_line_end_is_the_token(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    hub.look("hf://org/m")
    assert web.tokens[-1][1] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("token", [f"{TOKEN}\nX-Other: 1", f"{TOKEN} b", f"{TOKEN}é", f"{TOKEN}\0"])
def test_what_cannot_be_a_token_is_refused_and_not_shown(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    manifest = _manifest(hub.look("hf://org/m"))
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text(token)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HOME", str(home))
    with pytest.raises(ConfigError, match=f"{home}/token holds more than a token") as refused:
        hub.look("hf://org/m")
    with LocalModel(manifest) as model:
        with pytest.raises(WeightsError, match="holds more than a token") as failed:
            model.wait_whole()
        noted = (model.paths.partial / READY).read_bytes()
    assert TOKEN not in f"{refused.value} {failed.value}"
    assert TOKEN.encode() not in noted


def test_the_text_of_a_library_stays_out_of_failures(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = _manifest(hub.look("hf://org/m"))

    def refuse(*given: object, **named: object) -> None:
        raise ValueError(f"Invalid header value b'Bearer {TOKEN}'")

    monkeypatch.setattr(local, "Transfer", refuse)
    with LocalModel(manifest) as model:
        with pytest.raises(WeightsError, match=r"^ValueError$"):
            model.wait_whole()
        assert TOKEN.encode() not in (model.paths.partial / READY).read_bytes()
    full = OSError(28, "No space left on device", "/cache/f")
    assert local._reason(full) == "OSError (No space left on device): /cache/f"


@pytest.mark.parametrize(
    ("target", "says"),
    [("file:///etc/hostname", "redirected to file:"), ("http://169.254.169.254/a", "metad")],
)
def test_a_file_that_is_redirected_to_what_is_no_web_server_is_not_read(
    web: Web, target: str, says: str
) -> None:
    file = hub.look("hf://org/m").files["config.json"]
    web.pages["/org/m/resolve/c0ffee/config.json"] = target
    for ask in (lambda: hub.address(file), lambda: hub.read(file, 0, 5), lambda: _found(file.url)):
        with pytest.raises(OSError, match=says):
            ask()


def _found(url: str | None) -> str:
    return hub_http.web_address(str(url), "f")


def test_a_web_server_that_redirects_is_followed(web: Web, webs: list[Web]) -> None:
    other = webs[1]
    for name, data in FILES.items():
        web.pages[f"/models/m/{name}"] = f"{other.url}/store/{name}"
        other.pages[f"/store/{name}"] = data
    files = tuple(ModelFile(name=name, size=len(data), etag='"e"') for name, data in FILES.items())
    with LocalModel(Manifest(uri=f"{web.url}/models/m", files=files)) as model:
        folder = model.wait_whole()
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert {token for _, token in other.tokens} == {None}


def test_what_a_store_without_rights_to_list_says_of_missing_files_is_a_no(web: Web) -> None:
    """S3 answers 403 where it may not say 404."""
    named = {*FILES, "tokenizer.model.v3", "tekken.json", "spm.spm", "processor_config.json"}
    web.pages |= {f"/models/m/{name}": FILES.get(name, b"{}") for name in named}
    web.busy = lambda path: None if path in web.pages else 403
    manifest = read_manifest(f"{web.url}/models/m")
    check_remote(manifest)
    assert {file.name for file in manifest.files} == named
    for needed in FILES:
        kept = web.pages.pop(f"/models/m/{needed}")
        with pytest.raises(ConfigError, match=f"not allowed: {web.url}/models/m/{needed}"):
            read_manifest(f"{web.url}/models/m")
        web.pages[f"/models/m/{needed}"] = kept


@pytest.mark.parametrize("proxy", ["proxy:3128", "http://proxy:3128", "http://me:word@proxy:3128/"])
def test_a_proxy_is_found_with_and_without_a_scheme(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    assert fetcher._proxy("example.org") == "proxy:3128"


@pytest.mark.parametrize(
    ("netloc", "direct"),
    [
        ("10.2.3.4:9000", True),
        ("10.2.3.4", True),
        ("[fd00::5]:9000", True),
        ("11.2.3.4:9000", False),
        ("store.intern.example:443", True),
        ("store.example", False),
        ("10.example:80", False),
    ],
)
def test_networks_are_exceptions_from_the_proxy(
    netloc: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes' users name them; the client that lists heeds them, too."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", ".intern.example, 10.0.0.0/8,fd00::/8,not/a-network")
    assert (fetcher._proxy(netloc) is None) is direct


def test_a_hub_that_says_when_to_ask_again_is_waited_for(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(retries, "time", SimpleNamespace(sleep=waits.append))
    web.busy = lambda path: 429 if web.asked[path] <= 2 else None
    web.after = "20"
    assert set(hub.look("hf://org/m").files) == set(FILES)
    assert [int(wait) for wait in waits] == [20, 20]
    assert "hf://org/m: HTTP 429: the server wants to be asked again in 20 s" in caplog.text
    web.busy, web.after = (lambda path: 429 if web.asked[path] <= 4 else None), "9999"
    hub.look("hf://org/m")
    assert max(waits) < retries.LONGEST_PAUSE + 1


def test_a_fetch_waits_as_long_as_a_hub_says(web: Web) -> None:
    manifest = _manifest(hub.look("hf://org/m"))
    began = time.monotonic()
    web.busy = lambda path: 429 if web.asked[path] <= 1 else None
    web.after = "3"
    with LocalModel(manifest) as model:
        model.wait_whole()
    assert time.monotonic() - began > 3
    # Refused once, then for its address, then for its bytes; on a busy machine one of these once more.
    assert 2 + 1 <= max(web.asked.values()) <= 2 + 2
