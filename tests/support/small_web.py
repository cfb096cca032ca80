"""A web server of a few pages, which a test sets by their paths."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """A web server that answers by path: bytes, a redirect (text), or a status. It notes what it was sent."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | str | int] = {}
        self.tokens: list[tuple[str, str | None]] = []
        self.ranges: list[tuple[str, str | None]] = []
        self.asked: Counter[str] = Counter()
        self.busy: Callable[[str], int | None] = lambda path: None
        self.after: str | None = None
        self.without_length: set[str] = set()  # paths whose HEAD does not say it
        self.headers: dict[str, dict[str, str]] = {}  # more of them, by path
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.answer(self)

            do_HEAD = do_GET  # noqa: N815  the base class's name

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        path = request.path if request.path in self.pages else path
        self.asked[path] += 1
        self.tokens.append((path, request.headers.get("Authorization")))
        page = self.busy(path) or self.pages.get(path, 404)
        self.ranges.append((path, request.headers.get("Range")))
        body = page if isinstance(page, bytes) else b""
        span = request.headers.get("Range")
        if body and span:
            first, _, last = span.removeprefix("bytes=").partition("-")
            part = body[int(first) : int(last) + 1]
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}")
            body = part
        elif isinstance(page, str):
            request.send_response(307)
            request.send_header("Location", page)
        else:
            request.send_response(page if isinstance(page, int) else 200)
        if request.command != "HEAD" or path not in self.without_length:
            request.send_header("Content-Length", str(len(body)))
        if "ETag" not in self.headers.get(path, {}):
            request.send_header("ETag", '"e"')
        if self.after is not None:
            request.send_header("Retry-After", self.after)
        for name, value in self.headers.get(path, {}).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
