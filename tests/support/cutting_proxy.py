"""A TCP proxy, in a process of its own, that does to a connection what networks and firewalls do.

::

    with CuttingProxy(server.port) as proxy:
        store = open_store(server.url(name).replace(str(server.port), str(proxy.port)))
        proxy.cut_after(100, "client")

Faults last until ``resume``, but for those that end connections, which hit the ones there are.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Side = Literal["client", "server"]
_BLOCK = 1 << 16


class CuttingProxy:
    """The proxy's process, and its orders. Each order is obeyed when the call returns."""

    def __init__(self, target: int, *, port: int = 0) -> None:
        self._command = [sys.executable, "-m", "tests.support.cutting_proxy", str(target), str(port)]
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )
        self.port = int(self._answer()["port"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def cut(self) -> int:
        """Resets all connections at both ends; how many there were."""
        return int(self._order("cut")["connections"])

    def refuse(self) -> None:
        """Takes no new connections: nobody listens. Those there are go on."""
        self._order("refuse")

    def stall(self, *, both: bool = True) -> None:
        """Takes all bytes and forwards none (not ``both``: none of the server's). Connections stay open."""
        self._order("stall", both=both)

    def half_close(self, side: Side = "server") -> None:
        """Tells the other side that ``side`` of each connection sends no more; what it sends is lost."""
        self._order("half_close", side=side)

    def cut_after(self, count: int, side: Side) -> None:
        """Resets the connection, once, over which ``side`` has sent ``count`` more bytes; those arrive."""
        self._order("cut_after", count=count, side=side)

    def resume(self) -> None:
        """Forwards again, also what was held back, and listens again."""
        self._order("resume")

    def sent(self) -> dict[Side, int]:
        """Bytes that came from each side so far, over all connections."""
        answer = self._order("sent")
        return {"client": answer["client"], "server": answer["server"]}

    def pending_cut(self) -> bool:
        """Whether ``cut_after`` still waits for its byte."""
        return bool(self._order("sent")["pending"])

    def connections(self) -> int:
        """How many connections there are."""
        return int(self._order("sent")["connections"])

    def _order(self, name: str, **arguments: Any) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"order": name, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the proxy has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


class _End:
    """One end of a connection: its socket, and what waits to be sent to it."""

    def __init__(self, sock: socket.socket, side: Side) -> None:
        self.sock = sock
        self.side = side
        self.other: _End = self
        self.waiting = bytearray()
        self.deaf = False  # what it sends is dropped
        self.ended = False  # it sends no more


class _Proxy:
    def __init__(self, target: int, port: int) -> None:
        self._target = target
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._ends: set[_End] = set()
        self._stalled: tuple[Side, ...] = ()  # whose bytes are not forwarded
        self._cut_after: tuple[Side, int] | None = None
        self._sent: dict[Side, int] = {"client": 0, "server": 0}
        self._listener: socket.socket | None = None
        self._listen()

    def run(self) -> None:
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._obey)
        print(json.dumps({"port": self._port}), flush=True)
        while True:
            for key, events in self._selector.select():
                if isinstance(key.data, _End):
                    if key.data in self._ends:  # not closed by an earlier one of this round
                        self._serve(key.data, events)
                else:
                    key.data()

    # -- orders ------------------------------------------------------------------------------

    def _obey(self) -> None:
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        arguments = json.loads(line)
        act: Callable[..., dict[str, Any] | None] = getattr(self, f"order_{arguments.pop('order')}")
        print(json.dumps(act(**arguments) or {}), flush=True)

    def order_cut(self) -> dict[str, Any]:
        count = len(self._ends) // 2
        for end in [end for end in self._ends if end.side == "client"]:
            self._reset(end)
        return {"connections": count}

    def order_refuse(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def order_stall(self, both: bool) -> None:
        self._stalled = ("client", "server") if both else ("server",)
        self._watch_all()

    def order_half_close(self, side: Side) -> None:
        for end in self._ends:
            if end.side == side:
                end.deaf = True
                end.other.sock.shutdown(socket.SHUT_WR)

    def order_cut_after(self, count: int, side: Side) -> None:
        self._cut_after = (side, count)

    def order_resume(self) -> None:
        self._stalled = ()
        self._cut_after = None
        self._watch_all()
        for end in list(self._ends):
            self._close_ended(end)
        if self._listener is None:
            self._listen()

    def order_sent(self) -> dict[str, Any]:
        return {
            **{str(side): count for side, count in self._sent.items()},
            "pending": self._cut_after is not None,
            "connections": len(self._ends) // 2,
        }

    # -- connections -------------------------------------------------------------------------

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=64)
        self._port = self._listener.getsockname()[1]
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            _close_hard(near)
            return
        client, server = _End(near, "client"), _End(far, "server")
        client.other, server.other = server, client
        for end in (client, server):
            end.sock.setblocking(False)
            end.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.add(end)
            self._selector.register(end.sock, selectors.EVENT_READ, end)

    def _serve(self, end: _End, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                del end.waiting[: end.sock.send(end.waiting)]
                self._watch(end)
                self._close_ended(end.other)
            if events & selectors.EVENT_READ and end in self._ends:
                self._take(end)
        except OSError:
            self._reset(end)

    def _take(self, end: _End) -> None:
        data = end.sock.recv(_BLOCK)
        if not data:
            end.ended = True
            self._watch(end)
            self._close_ended(end)
            return
        self._sent[end.side] += len(data)
        if end.deaf:
            return
        cut = self._cut_after is not None and self._cut_after[0] == end.side
        if cut:
            assert self._cut_after is not None
            rest = self._cut_after[1] - len(data)
            self._cut_after = (end.side, rest) if rest > 0 else None
            if rest <= 0:
                self._send_and_cut(end, data[: len(data) + rest])
                return
        end.other.waiting += data
        self._watch(end.other)

    def _send_and_cut(self, end: _End, data: bytes) -> None:
        # An orderly end towards the receiver: a reset would throw away what it has not read yet.
        receiver = end.other
        receiver.sock.setblocking(True)
        receiver.sock.sendall(bytes(receiver.waiting) + data)
        receiver.sock.shutdown(socket.SHUT_WR)
        self._drop(receiver)
        self._drop(end)
        _close_hard(end.sock)
        receiver.sock.close()

    def _watch(self, end: _End) -> None:
        events = 0 if end.ended else selectors.EVENT_READ
        if end.waiting and end.other.side not in self._stalled:
            events |= selectors.EVENT_WRITE
        if events:
            if end.sock.fileno() in self._selector.get_map():
                self._selector.modify(end.sock, events, end)
            else:
                self._selector.register(end.sock, events, end)
        elif end.sock.fileno() in self._selector.get_map():
            self._selector.unregister(end.sock)

    def _watch_all(self) -> None:
        for end in self._ends:
            self._watch(end)

    def _drop(self, end: _End) -> None:
        self._ends.discard(end)
        if end.sock.fileno() in self._selector.get_map():
            self._selector.unregister(end.sock)

    def _close_ended(self, end: _End) -> None:
        """Pass on an end, after all that came before it: PostgreSQL has no use for half a connection."""
        if end in self._ends and end.ended and not end.other.waiting and end.side not in self._stalled:
            self._close(end)

    def _close(self, end: _End) -> None:
        for one in (end, end.other):
            self._drop(one)
            one.sock.close()

    def _reset(self, end: _End) -> None:
        for one in (end, end.other):
            self._drop(one)
            _close_hard(one.sock)


def _close_hard(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
    sock.close()


if __name__ == "__main__":
    _Proxy(int(sys.argv[1]), int(sys.argv[2])).run()
