"""A run's two slow processes import what they need while the command line reads what it is to do.

Ray's head and Prefect's server take seconds of imports. They begin with the command, and start nothing until
the run asks them to. Where the run is refused, or has no use for them, they end at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from dray.cli.server import PrefectServer, configured, has_flows
from dray.errors import DrayError

_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The run's own short lines take the place of Prefect's console format; its UI has everything.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS": "dray.cli.output.RunLog",
}

_COMMANDS = ("run", "resume")
_HELP = {"-h", "--help"}

_server: PrefectServer | None = None


@contextmanager
def warm_up_for(arguments: Sequence[str]) -> Iterator[None]:
    """Have the processes of a command that runs a job import; what the command left unused ends."""
    if not arguments or arguments[0] not in _COMMANDS or _HELP.intersection(arguments):
        yield
        return
    from dray.cluster import cool_down

    try:
        with suppress(OSError, DrayError):  # the run says what is wrong
            _warm_up(own_cluster=not any(word.startswith("--cluster") for word in arguments))
        yield
    finally:
        cool_down()
        if (server := warm_server()) is not None:
            server.stop()


def warm_server() -> PrefectServer | None:
    """Prefect's server that imports already, for the caller to start and stop."""
    global _server
    server, _server = _server, None
    return server


def quieten() -> None:
    """Set what keeps libraries quiet, here and in processes that start from now on."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def _warm_up(*, own_cluster: bool) -> None:
    global _server
    from dray.cluster import warm_up

    quieten()
    if has_flows() and not configured():
        _server = PrefectServer()
        _server.warm_up()
    if own_cluster:
        warm_up()
