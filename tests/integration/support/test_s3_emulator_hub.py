"""The emulator is a model hub to a client that others wrote, and its large files are elsewhere."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration

WEIGHTS = os.urandom(1_000_000)
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
API = "/api/models/org/some-model.v1/revision"
FILES = "/org/some-model.v1/resolve"
LARGE = "hub/org/some-model.v1/model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came, without going where it points."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body as such."""
        return json.loads(self.body)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    server = EmulatorProcess(tmp_path_factory.mktemp("hub"))
    yield server
    server.stop()


@pytest.fixture
def server(running: EmulatorProcess) -> EmulatorProcess:
    running.behave()
    return running


@pytest.fixture(autouse=True)
def repository(running: EmulatorProcess) -> Path:
    folder = running.root / "hub/org/some-model.v1"
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "onnx/read me.md").write_text("more")
    return folder


def _ask(server: EmulatorProcess, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1]), timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    found = Answer(status=answer.status, headers=answer.headers, body=answer.read())
    connection.close()
    return found


def _target(server: EmulatorProcess) -> str:
    location = _ask(server, f"{FILES}/main/model.safetensors").headers["Location"]
    assert location.startswith(f"{server.url}/")
    return str(location.removeprefix(server.url))


def test_what_a_repository_holds(server: EmulatorProcess) -> None:
    plain = _ask(server, f"{API}/main").json
    assert plain["siblings"] == [
        {"rfilename": "config.json"},
        {"rfilename": "model.safetensors"},
        {"rfilename": "onnx/read me.md"},
    ]
    assert len(plain["sha"]) == 40
    full = _ask(server, f"{API}/{plain['sha']}?blobs=true").json
    assert full["sha"] == plain["sha"]
    assert [(file["rfilename"], file["size"]) for file in full["siblings"]] == [
        ("config.json", len(CONFIG)),
        ("model.safetensors", len(WEIGHTS)),
        ("onnx/read me.md", 4),
    ]
    assert [file.get("lfs", {}).get("sha256") for file in full["siblings"]] == [None, DIGEST, None]


def test_small_files_are_there_and_large_ones_elsewhere(server: EmulatorProcess) -> None:
    commit = _ask(server, f"{API}/main").json["sha"]
    small = _ask(server, f"{FILES}/{commit}/config.json")
    assert (small.status, small.body, small.headers["X-Repo-Commit"]) == (200, CONFIG, commit)
    assert _ask(server, f"{FILES}/{commit}/onnx/read%20me.md").body == b"more"
    head = _ask(server, f"{FILES}/{commit}/config.json", "HEAD")
    assert (head.headers["ETag"], head.headers["Content-Length"]) == (small.headers["ETag"], str(len(CONFIG)))
    for method in ("GET", "HEAD"):
        large = _ask(server, f"{FILES}/{commit}/model.safetensors", method)
        assert (large.status, large.body, large.headers["X-Repo-Commit"]) == (302, b"", commit)
        assert large.headers["X-Linked-Etag"] == f'"{DIGEST}"'
        assert large.headers["X-Linked-Size"] == str(len(WEIGHTS))
    target = _target(server)
    etag = _ask(server, target, "HEAD").headers["ETag"]
    part = _ask(server, target, Range="bytes=10-19", If_Match=etag)
    assert (part.status, part.body) == (206, WEIGHTS[10:20])
    assert server.served()[LARGE] == 10
    assert _ask(server, target.split("?")[0]).status == 403
    assert _ask(server, f"{target}0").status == 403


def test_a_client_that_others_wrote_reads_it(
    server: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    endpoint = server.url.replace("127.0.0.1", "localhost")  # so that large files are on another host
    api = hub.HfApi(endpoint=endpoint, token=False)
    info = api.model_info("org/some-model.v1", files_metadata=True)
    assert {file.rfilename: file.lfs and file.lfs.sha256 for file in info.siblings} == {
        "config.json": None,
        "model.safetensors": DIGEST,
        "onnx/read me.md": None,
    }
    for name, content in (("config.json", CONFIG), ("model.safetensors", WEIGHTS)):
        path = api.hf_hub_download("org/some-model.v1", name, revision=info.sha, cache_dir=tmp_path)
        assert Path(path).read_bytes() == content
    with pytest.raises(hub.errors.EntryNotFoundError):
        api.hf_hub_download("org/some-model.v1", "none", cache_dir=tmp_path)
    with pytest.raises(hub.errors.RevisionNotFoundError):
        api.model_info("org/some-model.v1", revision="v2")
    with pytest.raises(hub.errors.RepositoryNotFoundError):
        api.model_info("org/other")


def test_another_file_is_another_commit(server: EmulatorProcess, repository: Path) -> None:
    commit, target = _ask(server, f"{API}/main").json["sha"], _target(server)
    etag = _ask(server, target, "HEAD").headers["ETag"]
    (repository / "model.safetensors").write_bytes(WEIGHTS[::-1])
    assert _ask(server, target, If_Match=etag).status == 412
    assert _ask(server, f"{API}/main").json["sha"] != commit
    gone = _ask(server, f"{FILES}/{commit}/config.json")
    assert (gone.status, gone.headers["X-Error-Code"]) == (404, "RevisionNotFound")
    linked = _ask(server, f"{FILES}/main/model.safetensors").headers["X-Linked-Etag"]
    assert linked == f'"{hashlib.sha256(WEIGHTS[::-1]).hexdigest()}"'


def test_a_repository_is_replaced_while_it_is_read(server: EmulatorProcess) -> None:
    commit, target = _ask(server, f"{API}/main").json["sha"], _target(server)
    etag = _ask(server, target, "HEAD").headers["ETag"]
    server.behave(changes_after=2)
    for _ in range(2):
        assert _target(server) == target  # a redirect is no request for an object
        assert _ask(server, target, Range="bytes=0-9", If_Match=etag).status == 206
    assert _ask(server, target, Range="bytes=0-9", If_Match=etag).status == 412
    after = _ask(server, f"{FILES}/{commit}/model.safetensors")
    assert after.status == 302
    assert after.headers["X-Linked-Etag"] != f'"{DIGEST}"'
    assert _ask(server, f"{API}/main").json["sha"] == after.headers["X-Repo-Commit"] != commit


def test_it_misbehaves(server: EmulatorProcess) -> None:
    target = _target(server)
    server.behave(corrupt_share=1)
    assert sum(a != b for a, b in zip(_ask(server, target).body, WEIGHTS, strict=True)) == 1
    server.behave(short_share=1)
    assert _ask(server, target, Range="bytes=0-999").body == WEIGHTS[:500]
    assert server.served() == {LARGE: 500}
    server.behave(busy_share=1)
    paths = (target, f"{API}/main", f"{FILES}/main/config.json", f"{FILES}/main/model.safetensors")
    assert [_ask(server, path).status for path in paths] == [503] * 4


def test_a_token(server: EmulatorProcess) -> None:
    server.behave(access_key="token")
    page = f"{FILES}/main/model.safetensors"
    assert _ask(server, page).status == _ask(server, f"{API}/main").status == 401
    assert _ask(server, page, Authorization="Bearer other").status == 401
    known = _ask(server, page, Authorization="Bearer token")
    assert known.status == 302
    target = known.headers["Location"].removeprefix(server.url)
    assert _ask(server, target).body == WEIGHTS
    assert _ask(server, target, Authorization="Bearer token").body == WEIGHTS


def test_nothing_outside_its_folder(server: EmulatorProcess) -> None:
    (server.root.parent / "secret").write_text("secret")
    for path in (f"{FILES}/main/../../../../secret", "/org/../resolve/main/secret", "/api/models/../.."):
        assert _ask(server, path).status == 404
    assert b"secret" not in _ask(server, "/..").body
