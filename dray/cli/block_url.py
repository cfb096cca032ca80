"""The URL of a store that a block of Prefect's holds, for commands that read the store.

Another process asks Prefect, which may need a server of its own for that. Prefect keeps the address of a
server for as long as a process lives, and a run that follows in this one has another.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import orjson

from dray.errors import ConfigError, DrayError
from dray.imports import own_program

_SECONDS = 120.0  # Prefect's import, and its server's start, on a busy machine


@cache
def url_of_block(name: str) -> str:
    """The URL in the block, once for each command: ``dray status --watch`` opens its store again and again.

    Raises:
        ConfigError: there is no such block, or no Prefect here.
    """
    told = _asked(name)
    if "url" not in told:
        raise ConfigError(
            told.get("error")
            or f"store: Prefect does not say what block:{name} holds; `prefect block ls` may say why, or "
            "give the URL by --store env:NAME"
        )
    return str(told["url"])


def _asked(name: str) -> dict[str, Any]:
    command = [*own_program("dray.cli.block_url"), name]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        found: dict[str, Any] = orjson.loads(ended.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, orjson.JSONDecodeError):
        return {}  # what Prefect wrote instead may hold secrets
    return found


def main() -> None:
    """The other process: a line of JSON with the ``url``, or the ``error``."""
    from dray.cli.with_prefect import prefect_blocks

    try:
        with prefect_blocks() as blocks:
            told = {"url": blocks.store_url(sys.argv[1])}
    except DrayError as error:
        told = {"error": str(error)}
    print(orjson.dumps(told).decode(), flush=True)  # noqa: T201  to the process that asks
