"""Files on the web: names with percent signs, and servers that answer no HEAD."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dray.errors import ConfigError, InputError
from dray.requests.reading.inputs import expand
from dray.storage.files import exists, open_lines
from dray.storage.objects import ObjectStoreOptions, head
from dray.storage.writable import check_writable

pytestmark = pytest.mark.unit

NAMES = {
    "my file.jsonl": ("my%20file.jsonl", "my file.jsonl"),
    "a+b.jsonl": ("a+b.jsonl", "a%2Bb.jsonl"),
    "100%.jsonl": ("100%25.jsonl", "100%.jsonl"),
    "[1].jsonl": ("%5B1%5D.jsonl",),
    "é.jsonl": ("%C3%A9.jsonl", "é.jsonl"),
}


class _Server(SimpleHTTPRequestHandler):
    answers_head = True

    def do_HEAD(self) -> None:
        if not self.answers_head:
            self.send_error(405)
            return
        super().do_HEAD()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Nothing."""


class _WithoutHead(_Server):
    answers_head = False


@pytest.fixture(params=[_Server, _WithoutHead])
def web(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    for name in NAMES:
        (tmp_path / name).write_text(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(request.param, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_names_are_written_with_percent_signs_or_without(web: str) -> None:
    for name, written in NAMES.items():
        for one in written:
            [found] = expand([f"{web}/{one}"])
            assert found.size == len(name.encode()), one
            assert list(open_lines(found.uri)) == [(1, name.encode())]


def test_what_is_missing_is_missing(web: str) -> None:
    assert not exists(f"{web}/none.jsonl")
    with pytest.raises(InputError, match="no such file"):
        expand([f"{web}/none.jsonl"])


@pytest.mark.parametrize(("path", "problem"), [("a%2Fb.jsonl", "%2F cannot be read"), ("%E9", "no UTF-8")])
def test_an_address_that_cannot_be_asked_for_says_so(path: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        expand([f"http://127.0.0.1:9/{path}"])


@pytest.mark.parametrize("key", ["a//b.jsonl", "/b.jsonl", "a/../b.jsonl"])
def test_a_doubled_slash_in_a_bucket_is_an_error_with_the_address(key: str) -> None:
    options = ObjectStoreOptions(
        endpoint="http://127.0.0.1:9", region="r", access_key_id="k", secret_access_key="s", allow_http=True
    )
    uri = f"s3://bucket/{key}"
    with pytest.raises(OSError, match=rf"{uri}: names of objects"):
        head(uri, options)
    with pytest.raises(InputError, match=uri):
        expand([uri], options=options)
    with pytest.raises(ConfigError, match="names of objects"):
        check_writable(uri, options=options)
