"""Datasets of a hub: how addresses are read, where the token goes, and what is said of what goes wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from dray.errors import ConfigError, InputError
from dray.requests.media.medium import IMAGES, MediaRoot
from dray.requests.reading.inputs import expand
from dray.requests.sources import source_of
from dray.storage import check_writable, datasets
from dray.storage.datasets import DatasetError, address_of
from dray.storage.files import open_lines, open_seekable
from dray.weights.source import hub
from tests.support.small_web import Web

pytestmark = pytest.mark.unit

TOKEN = "hf-canary-token"
SIGNED = "/stored?Signature=canary-signature"
COMMIT = "c0ffee" + "0" * 34
LINES = b'{"a": 1}\n{"a": 2}\n'
SHA256 = hashlib.sha256(LINES).hexdigest()
URI = f"hf://datasets/org/set@{COMMIT}/in.jsonl"
REVISION = "/api/datasets/org/set/revision/main"
TREE = f"/api/datasets/org/set/tree/{COMMIT}"
FILE = f"/datasets/org/set/resolve/{COMMIT}/in.jsonl"
ENTRY = {"type": "file", "oid": "0" * 40, "size": len(LINES), "path": "in.jsonl"}


@pytest.fixture
def webs() -> Iterator[list[Web]]:
    with ExitStack() as stack:
        made = [Web(), Web()]
        for one in made:
            stack.callback(one.stop)
        yield made


@pytest.fixture
def cdn(webs: list[Web]) -> Web:
    """Where the hub keeps large files."""
    webs[1].pages[SIGNED] = LINES
    return webs[1]


@pytest.fixture
def web(webs: list[Web], cdn: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Web:
    """The hub, with one dataset of one large file."""
    monkeypatch.setenv("HF_ENDPOINT", webs[0].url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for waits in ("retries._WAITS", "datasets.PATIENCE"):
        monkeypatch.setattr(f"dray.storage.{waits}", (0.0, 0.0, 0.0))
    webs[0].pages = {
        REVISION: json.dumps({"sha": COMMIT}).encode(),
        TREE: json.dumps([ENTRY]).encode(),
        FILE: f"{cdn.url}{SIGNED}",
    }
    webs[0].headers[FILE] = {"X-Linked-Size": str(len(LINES)), "X-Linked-Etag": f'"{SHA256}"'}
    return webs[0]


def problem_of(*inputs: str) -> str:
    """What is said of them, with nothing in it that is secret."""
    with pytest.raises(InputError) as refused:
        for ref in expand(inputs):
            list(open_lines(ref.uri))
    assert "canary" not in f"{refused.value!r} {refused.value}"
    return refused.value.problems[0].message


@pytest.mark.parametrize(
    "path",
    [
        "org/set/in.jsonl",
        "org/set",
        "org/set/",
        "org/set@v1.0/data/in.jsonl",
        "org/set@main",
        "org/set@refs%2Fconvert%2Fparquet/default/train/0000.parquet",
        "org/set@refs/convert/parquet/default/train/0000.parquet",
        "org/set@refs/convert/parquet-v2.1/in.jsonl",
        "org/set@refs/pr/12/in.jsonl",
        "org/set@refs/pr/12",
        "org/set@refs/heads/in.jsonl",
        "org/set@feature%2Fa%20b/in.jsonl",
        "org/set/odd@name/100%25.jsonl",
        "o-r_g/s.e-t/a b#1?.jsonl",
    ],
)
def test_addresses_are_read_as_others_read_them(path: str) -> None:
    utils = pytest.importorskip("huggingface_hub.utils")
    theirs, ours = utils.parse_hf_uri(f"hf://datasets/{path}"), address_of(f"hf://datasets/{path}")
    assert theirs.type == "dataset"
    found = (ours.repository, ours.revision, ours.path.strip("/"))
    assert found == (theirs.id, theirs.revision or "main", theirs.path_in_repo)
    assert address_of(ours.uri) == ours


@pytest.mark.parametrize(
    "path", ["", "org", "org/", "/org/set/a.jsonl", "org/set@/a.jsonl", "../set/a.jsonl", "org/s?t/a.jsonl"]
)
def test_what_is_no_address_says_how_to_write_one(path: str) -> None:
    with pytest.raises(DatasetError, match="write it as hf://datasets/ORG/NAME/PATH"):
        address_of(f"hf://datasets/{path}")


@pytest.mark.parametrize("path", ["../../api/a.jsonl", "a//b.jsonl", "./a.jsonl", "/a.jsonl"])
def test_a_path_does_not_lead_out_of_its_dataset(path: str) -> None:
    with pytest.raises(InputError, match="has no empty part"):
        expand([f"hf://datasets/org/set/{path}"])


def test_a_file_is_read_at_the_commit_and_the_token_stays_at_the_hub(web: Web, cdn: Web) -> None:
    [ref] = expand(["hf://datasets/org/set/in.jsonl"])
    assert (ref.uri, ref.size, ref.version) == (URI, len(LINES), SHA256)
    assert [line for _, line in open_lines(ref.uri)] == LINES.splitlines()
    with open_seekable(ref.uri) as file:
        file.seek(-10, 2)
        assert file.read() == LINES[-10:]
    assert {token for _, token in web.tokens} == {f"Bearer {TOKEN}"}
    assert {token for _, token in cdn.tokens} == {None}
    assert web.asked[REVISION] == 1  # a commit is not looked up


def test_a_small_file_lies_at_the_hub(web: Web) -> None:
    web.pages[FILE] = LINES
    web.headers[FILE] = {"ETag": 'W/"abc"'}
    for left_out in ((), (FILE,)):
        web.without_length = set(left_out)
        [ref] = expand([URI])
        assert (ref.size, ref.version) == (len(LINES), "abc")
        assert [line for _, line in open_lines(ref.uri)] == LINES.splitlines()


def test_a_small_file_of_the_real_hub_lies_behind_a_redirect_within_it(web: Web) -> None:
    cached = f"/api/resolve-cache/datasets/org/set/{COMMIT}/in.jsonl"
    web.pages |= {FILE: f"{cached}?%2Forg=&etag=%22abc%22", cached: LINES}
    web.headers = {FILE: {"ETag": '"of the redirect"'}, cached: {"ETag": '"abc"'}}
    [ref] = expand([URI])
    assert (ref.size, ref.version) == (len(LINES), "abc")
    assert [line for _, line in open_lines(ref.uri)] == LINES.splitlines()


def test_an_empty_file_is_one(web: Web) -> None:
    web.pages[FILE] = b""
    web.headers[FILE] = {"ETag": '"abc"'}
    [ref] = expand([URI])
    assert ref.size == 0
    assert list(open_lines(ref.uri)) == []


def test_the_next_page_of_a_listing_gets_no_token_at_another_server(web: Web, cdn: Web) -> None:
    other = ENTRY | {"path": "on.jsonl", "lfs": {"oid": SHA256, "size": 7, "pointerSize": 1}, "size": 7}
    web.headers[TREE] = {"Link": f'<{web.url}{TREE}?cursor=2>; rel="next"'}
    web.pages[f"{TREE}?cursor=2"] = b"[]"
    web.headers[f"{TREE}?cursor=2"] = {"Link": f'<{cdn.url}/more>; rel="next"'}
    cdn.pages["/more"] = json.dumps([other]).encode()
    refs = expand(["hf://datasets/org/set/*.jsonl"])
    assert [(ref.uri[-8:], ref.size, ref.version) for ref in refs] == [
        ("in.jsonl", len(LINES), "0" * 40),
        ("on.jsonl", 7, SHA256),
    ]
    assert cdn.tokens == [("/more", None)]


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("http://169.254.169.254/latest", "metadata service"),
        ("file:///etc/hostname", "redirected to file:"),
        (f"{TREE}?recursive=false&expand=false", "without end"),
    ],
)
def test_a_listing_goes_on_to_no_other_place(web: Web, link: str, says: str) -> None:
    web.headers[TREE] = {"Link": f'<{link}>; rel="next"'}
    assert says in problem_of("hf://datasets/org/set/*.jsonl")


@pytest.mark.parametrize(
    ("target", "says"),
    [("http://169.254.169.254/a?Signature=canary", "metadata service"), ("file:///etc/hostname", "to file:")],
)
def test_a_file_that_is_redirected_to_no_web_server_is_not_read(web: Web, target: str, says: str) -> None:
    web.pages[FILE] = target
    assert says in problem_of(URI)


def test_a_signed_address_that_ends_is_asked_for_again(web: Web, cdn: Web) -> None:
    file = datasets.DatasetFile(URI)
    assert file.read(0, 4) == LINES[:4]
    cdn.pages = {"/again?Signature=canary": LINES}
    cdn.busy = lambda path: 403 if path == "/stored" else None
    web.pages[FILE] = f"{cdn.url}/again?Signature=canary"
    assert file.read(4, 9) == LINES[4:9]
    web.headers[FILE]["X-Linked-Etag"] = '"other"'
    cdn.pages = {}
    with pytest.raises(OSError, match="was replaced while it was read"):
        file.read(9, 12)


def test_a_server_that_is_away_for_a_moment_is_asked_again(web: Web, cdn: Web) -> None:
    web.busy = lambda path: 503 if web.asked[path] <= 2 else None
    cdn.busy = lambda path: 500 if cdn.asked[path] <= 3 else None
    [ref] = expand(["hf://datasets/org/set/in.jsonl"])
    assert [line for _, line in open_lines(ref.uri)] == LINES.splitlines()


def test_a_hub_whose_limit_is_spent_is_waited_for(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("dray.storage.retries.time", SimpleNamespace(sleep=waits.append))
    web.busy = lambda path: 429 if web.asked[path] <= 1 else None
    web.headers[REVISION] = {"RateLimit": '"api";r=0;t=55'}
    expand(["hf://datasets/org/set/in.jsonl"])
    assert [int(wait) for wait in waits] == [55, 0]
    assert "org/set: HTTP 429: the server wants to be asked again in 55 s" in caplog.text


def test_other_bytes_than_the_hub_names_are_found_out(web: Web, cdn: Web) -> None:
    cdn.pages[SIGNED] = LINES.replace(b"2", b"3")
    assert "not those that the hub's SHA-256 names" in problem_of(URI)
    cdn.pages[SIGNED] = LINES * 2
    assert f"the server has {2 * len(LINES)} bytes of it" in problem_of(URI)


@pytest.mark.parametrize(
    ("path", "status", "reason", "says"),
    [
        (REVISION, 401, "RepoNotFound", "has no dataset org/set, or does not let us read it.* HF_TOKEN"),
        (REVISION, 401, "", "HF_TOKEN holds a token that may read it"),
        (REVISION, 404, "RepoNotFound", "check the name, and that HF_TOKEN"),
        (
            REVISION,
            403,
            "GatedRepo",
            "is gated: accept its conditions at http.*/datasets/org/set, and set HF_T",
        ),
        (FILE, 403, "GatedRepo", "is gated"),
        (REVISION, 404, "RevisionNotFound", "has no revision 'main'.* as %2F"),
        (REVISION, 404, "", "finds nothing there"),
        (FILE, 404, "EntryNotFound", "no such file in dataset org/set at c0ffee0+; check the path"),
        (REVISION, 503, "", "the hub at http.* does not give it: org/set: HTTP 503"),
    ],
)
def test_what_a_hub_refuses_is_told(web: Web, path: str, status: int, reason: str, says: str) -> None:
    web.pages[path] = status
    web.headers[path] = {"X-Error-Code": reason}
    with pytest.raises(InputError, match=says):
        expand(["hf://datasets/org/set/in.jsonl"])


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (REVISION, b"<html>Sign in</html>"),
        (REVISION, b"[]"),
        (REVISION, b'{"sha": "../../api"}'),
        (TREE, b'{"error": 1}'),
        (TREE, b'[{"type": "file", "path": "in.jsonl", "oid": "0", "size": null}]'),
        (TREE, b"[" * 100_000),
    ],
)
def test_what_is_no_answer_of_a_hub_is_refused(web: Web, path: str, answer: bytes) -> None:
    web.pages[path] = answer
    assert "is no hub" in problem_of("hf://datasets/org/set/*.jsonl")


def test_what_cannot_be_a_token_is_not_shown(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN} b")
    assert "HF_TOKEN holds more than a token" in problem_of("hf://datasets/org/set/in.jsonl")


@pytest.mark.parametrize(
    "name", ["hf://org/model", "hf://org/model@main/in.jsonl", "hf://spaces/org/a/in.jsonl"]
)
def test_a_model_is_no_input(name: str) -> None:
    with pytest.raises(InputError, match=r"is no dataset.* hf://datasets/ORG/NAME/PATH"):
        expand(source_of(name).inputs)  # type: ignore[union-attr]


def test_a_dataset_is_no_model_and_no_place_for_outputs_or_images() -> None:
    with pytest.raises(ConfigError, match=r"this names a dataset.* hf://ORG/NAME"):
        hub.look("hf://datasets/org/set")
    with pytest.raises(ConfigError, match="cannot be written to a hub"):
        check_writable("hf://datasets/org/set")
    with pytest.raises(ConfigError, match="reads no images from a hub"):
        MediaRoot(IMAGES, "hf://datasets/org/set/pictures")


def test_an_address_with_a_login_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        source_of("hf://user:canary@datasets/org/set/in.jsonl")
    assert "canary" not in str(refused.value)
