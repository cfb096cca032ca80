"""Mirrors of a hub, gated repositories, and where the user's token is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.storage import hub_http
from dray.weights import LocalModel, check_remote, read_manifest
from dray.weights.node.cache import READY
from dray.weights.node.places import CACHE_VARIABLE
from tests.support.small_web import Web

pytestmark = pytest.mark.unit

TOKEN = "hub-token"
HEADER = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
FILES = {"config.json": b"{}", "model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + b"abcd"}
INFO = {"sha": "c0ffee", "siblings": [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]}
API = "/api/models/org/m/revision/main"
FOLDER = "/org/m/resolve/c0ffee"


@pytest.fixture
def webs() -> Iterator[list[Web]]:
    with ExitStack() as stack:
        made = [Web(), Web(), Web()]
        for web in made:
            stack.callback(web.stop)
        yield made


@pytest.fixture
def hub(webs: list[Web]) -> Web:
    """With a model; its small file lies behind a redirect within the hub, its large one elsewhere, signed."""
    hub, store = webs[0], webs[1]
    signed = "/stored?X-Signature=1"
    hub.pages = {
        API: json.dumps(INFO).encode(),
        f"{FOLDER}/config.json": "/api/resolve-cache/config.json",
        "/api/resolve-cache/config.json": FILES["config.json"],
        f"{FOLDER}/model.safetensors": f"{store.url}{signed}",
    }
    store.pages[signed] = FILES["model.safetensors"]
    return hub


@pytest.fixture(autouse=True)
def place(hub: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr("dray.storage.retries._WAITS", (0.0, 0.0, 0.0))


def _mirrored(hub: Web, mirror: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mirror`` sends all who ask to the hub."""
    monkeypatch.setenv("HF_ENDPOINT", mirror.url)
    mirror.pages = {path: f"{hub.url}{path}?blobs=true" for path in hub.pages if path != API}
    mirror.pages[API] = f"{hub.url}{API}?blobs=true"


def test_a_mirror_that_redirects_to_the_hub_is_followed(
    hub: Web, webs: list[Web], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those do that serve one country alone, and an http address that is upgraded to https."""
    _mirrored(hub, webs[2], monkeypatch)
    manifest = read_manifest("hf://org/m")
    check_remote(manifest)
    with LocalModel(manifest) as model:
        folder = model.wait_whole()
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert {token for _, token in webs[2].tokens} == {f"Bearer {TOKEN}"}
    assert {token for web in webs[:2] for _, token in web.tokens} == {None}


def test_a_store_that_answers_no_head_is_read(hub: Web, webs: list[Web]) -> None:
    store = webs[1]
    hub.pages[f"{FOLDER}/config.json"] = f"{store.url}/unsigned"
    hub.headers[f"{FOLDER}/config.json"] = {"X-Linked-Etag": '"abc"', "X-Linked-Size": "2"}
    store.pages["/unsigned"] = b"{}"
    store.busy = lambda path: 403 if path == "/unsigned" and store.asked[path] == 1 else None
    found = hub_http.find(f"{hub.url}{FOLDER}/config.json", "config.json")
    assert (found.url, found.size, found.etag) == (f"{store.url}/unsigned", 2, "abc")
    assert hub_http.read_range(found, 0, 2, "config.json") == b"{}"


def test_a_signed_address_is_asked_for_nothing_but_bytes(hub: Web, webs: list[Web]) -> None:
    """It is signed for one method."""
    found = hub_http.find(f"{hub.url}{FOLDER}/model.safetensors", "model.safetensors")
    assert found.headers == {}
    assert not webs[1].asked


@pytest.mark.parametrize("link", ["https://hub.invalid{api}?cursor=2", "{api}?cursor=2"])
def test_a_mirror_is_asked_for_the_next_page_itself(hub: Web, link: str) -> None:
    """Mirrors hand on the links of the hub behind them, which may be out of reach, and wants the token."""
    tree = "/api/datasets/org/set/tree/c0ffee"
    hub.pages = {tree: b"[1]", f"{tree}?cursor=2": b"[2]"}
    link = link.format(api=tree)
    hub.headers[tree] = {"Link": f'<{link}>; rel="next"'}
    first = hub_http.page(f"{hub.url}{tree}", "org/set")
    assert first.following == f"{hub.url}{tree}?cursor=2"
    assert hub_http.page(first.following, "org/set").body == b"[2]"
    assert {token for _, token in hub.tokens} == {f"Bearer {TOKEN}"}


def test_a_gated_model_says_what_to_do(hub: Web) -> None:
    """Its list of files is there for all, so that the first file is refused."""
    manifest = read_manifest("hf://org/m")
    for name in FILES:
        hub.pages[f"{FOLDER}/{name}"] = 403
        hub.headers[f"{FOLDER}/{name}"] = {"X-Error-Code": "GatedRepo"}
    says = (
        f"the model is gated: accept its conditions at {hub.url}/org/m, and set HF_TOKEN to a token of that"
    )
    with pytest.raises(WeightsError, match=says):
        check_remote(manifest)
    with LocalModel(manifest) as model:
        with pytest.raises(WeightsError, match=says):
            model.wait_whole()
        assert (model.paths.partial / READY).exists()


def test_so_does_one_behind_a_mirror(hub: Web, webs: list[Web], monkeypatch: pytest.MonkeyPatch) -> None:
    _mirrored(hub, webs[2], monkeypatch)
    manifest = read_manifest("hf://org/m")
    hub.pages[f"{FOLDER}/config.json"] = 403
    hub.headers[f"{FOLDER}/config.json"] = {"X-Error-Code": "GatedRepo"}
    with pytest.raises(WeightsError, match=f"the model is gated: .* at {webs[2].url}/org/m, and"):
        check_remote(manifest)


@pytest.mark.parametrize(
    ("variable", "value", "file"),
    [
        ("HF_TOKEN_PATH", "~/secrets/hub", "secrets/hub"),
        ("HF_HOME", "~/hf", "hf/token"),
        ("HF_HOME", "$HOME/hf", "hf/token"),
        ("XDG_CACHE_HOME", "{home}/scratch", "scratch/huggingface/token"),
        ("HOME", "{home}", ".cache/huggingface/token"),
    ],
)
def test_the_token_of_a_login_is_found(
    variable: str, value: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, value.format(home=tmp_path))
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("hf_of_the_login\n")
    assert hub_http._authorization() == {"Authorization": "Bearer hf_of_the_login"}
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_older")
    assert hub_http._authorization() == {"Authorization": "Bearer hf_older"}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub_http._authorization() == {"Authorization": f"Bearer {TOKEN}"}
