"""Batches of rows to processes that count their tokens, and the figures back in the order of the rows."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from types import TracebackType

from dray.errors import DrayError
from dray.machine import cores
from dray.planner.workload.counting import Counted
from dray.planner.workload.worker import Setup

_AHEAD = 2  # batches that a process has at a time: one in work, one that waits
_WORTH_ANOTHER = 4  # batches for each process before one more is started: its start takes 2 s of a core
_MOST = 32
_MODULE = "dray.planner.workload.worker"


class Processes:
    """Up to ``most`` of them, started as there is work; all end with the block. None: one for each core."""

    def __init__(self, setup: Setup, most: int | None = None) -> None:
        self._setup = setup
        self._most = min(most or cores(), _MOST)
        self._workers: list[_Worker] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def counted(self, batches: Iterable[list[bytes]]) -> Iterator[Counted]:
        """The figures of each batch, in their order.

        Raises:
            ConfigError: the tokenizer cannot be loaded, or fails.
            DrayError: a process ended by itself.
        """
        busy: deque[_Worker] = deque()  # one entry for each batch that is under way
        for number, batch in enumerate(batches):
            while len(busy) >= _AHEAD * self._wanted(number):
                yield busy.popleft().answer()
            worker = self._free(number)
            worker.give(batch)
            busy.append(worker)
        while busy:
            yield busy.popleft().answer()

    def _wanted(self, batches: int) -> int:
        return min(self._most, 1 + batches // _WORTH_ANOTHER)

    def _free(self, batches: int) -> _Worker:
        """The process with the fewest batches; a new one where there is work for it."""
        if len(self._workers) < self._wanted(batches):
            self._workers.append(_Worker(self._setup))
            return self._workers[-1]
        return min(self._workers, key=lambda worker: worker.waiting)


class _Worker:
    """One process, and how many batches it has not answered."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self.waiting = 0
        self._connection = Connection(ours.detach())
        environment = {
            **os.environ,
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # an empty one is the current folder
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        self._connection.send(setup)

    def give(self, batch: list[bytes]) -> None:
        """Hand it a batch; waits while it has not read the one before."""
        try:
            self._connection.send(batch)
        except OSError:
            raise self._why() from None
        self.waiting += 1

    def answer(self) -> Counted:
        """The figures of the first batch that it has not answered."""
        try:
            found = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(found, DrayError):
            raise found
        assert isinstance(found, Counted)
        self.waiting -= 1
        return found

    def end(self) -> None:
        """End it: it holds nothing that is needed later."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _why(self) -> DrayError:
        """It takes no more: the error that it left, or that it ended."""
        try:
            found = self._connection.recv()
        except (EOFError, OSError):
            found = None
        return found if isinstance(found, DrayError) else self._ended()

    def _ended(self) -> DrayError:
        code = self._process.wait()
        return DrayError(f"a process that counts tokens ended by itself (exit code {code}); start again")
