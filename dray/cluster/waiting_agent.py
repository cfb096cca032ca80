"""Stands in for an agent of a Ray node until that node asks the agent for something.

Ray starts two agents beside each node's daemon. The daemon starts no worker before it has the ports of both,
and each imports for half a second of a core or more. A job of dray on its own machine needs neither: it
exports no metrics, and all its processes share one environment. This program takes an agent's place, and
tells the daemon its ports. At the first connection it becomes the agent. The daemon then asks again, as it
does while an agent starts.

It runs without site-packages, so it imports nothing of Ray or dray. Its arguments are the agent's command.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

_ASKED_AT = "--runtime-env-agent-port="  # only one of the agents is asked for something
_UNUSED = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_NO_SERVICE = -1  # as Ray's own agent says where it was installed without metrics
_LOOK_SECONDS = 1.0
_DAEMON = b"raylet"


def main() -> None:
    """Wait for a connection, or for the end of the daemon."""
    command = sys.argv[1:]
    daemon = os.getppid()
    if _DAEMON not in _command_line(daemon):
        return  # it died before this line
    waiting = _waiting(command)
    while os.getppid() == daemon:
        asked, _, _ = select.select(waiting, [], [], _LOOK_SECONDS)
        if asked:
            _become(command, waiting[0])


def _waiting(command: list[str]) -> list[socket.socket]:
    """Where the agent is asked; the daemon has its ports then."""
    if not _value(command, _ASKED_AT):
        for name in _UNUSED:
            _tell(command, name, _NO_SERVICE)
        return []
    host, port = _value(command, "--node-ip-address="), int(_value(command, _ASKED_AT))
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(address)
    found.listen()
    _tell(command, "runtime_env_agent_port", found.getsockname()[1])
    return [found]


def _become(command: list[str], asked: socket.socket) -> None:
    port = asked.getsockname()[1]
    asked.close()
    known = [f"{_ASKED_AT}{port}" if word.startswith(_ASKED_AT) else word for word in command]
    os.execv(known[0], known)  # noqa: S606  Ray's own command


def _tell(command: list[str], name: str, port: int) -> None:
    """The daemon reads ports from files of its session."""
    path = Path(_value(command, "--session-dir="), f"{name}_{_value(command, '--node-id=')}")
    part = path.with_suffix(".part")
    part.write_text(str(port))
    part.replace(path)


def _value(command: list[str], option: str) -> str:
    return next((word.removeprefix(option) for word in command if word.startswith(option)), "")


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
