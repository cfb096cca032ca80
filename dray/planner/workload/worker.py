"""A process that counts tokens. A program of its own; its argument is the descriptor of a connection.

It gets :class:`Setup`, then batches of lines, and answers each with its figures in the same order, or with
the error that it met, after which it ends. It ends when the connection does.
"""

from __future__ import annotations

import queue
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

from dray.errors import ConfigError, DrayError, raised_at
from dray.planner.workload.counting import count
from dray.planner.workload.encoders import Tokens


@dataclass(frozen=True, slots=True)
class Setup:
    """What stays the same for all batches."""

    tokens: Tokens
    block_tokens: int


def main() -> None:
    """Serve until the connection ends."""
    connection = Connection(int(sys.argv[1]))
    setup: Setup = connection.recv()
    batches: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
    # A thread reads: while this process writes a large answer, the other end may write a large batch.
    threading.Thread(target=_read, args=(connection, batches), name="dray-batches", daemon=True).start()
    try:
        encoder = setup.tokens.encoder()
        while (lines := batches.get()) is not None:
            connection.send(count(lines, encoder, setup.block_tokens))
    except DrayError as error:
        connection.send(error)
    except BaseException as error:  # noqa: BLE001  a tokenizer raises anything: Rust's panics are no Exception
        place = raised_at(error)  # its own words may quote a prompt
        connection.send(ConfigError(f"the tokenizer fails ({type(error).__name__}{place})"))


def _read(connection: Connection, batches: queue.SimpleQueue[list[bytes] | None]) -> None:
    try:
        while True:
            batches.put(connection.recv())
    except (EOFError, OSError):
        batches.put(None)


if __name__ == "__main__":
    main()
