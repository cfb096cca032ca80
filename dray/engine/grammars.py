"""Which grammars an engine may compile: those that a process with limits has compiled before it.

vLLM compiles the schemas, expressions and grammars of rows in a few threads of the engine, for as long as it
takes. One that takes for ever would keep its thread, its core and its row.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from dray.engine import grammar_process
from dray.errors import EngineDeadError, RequestRefused

logger = logging.getLogger(__name__)

GRAMMAR_SECONDS = 20
"""Seconds of processor time to compile one grammar in: of the processor, so that a busy machine changes no
verdict. With 128,000 tokens, a schema of a hundred fields takes below 1 s, an enum of 5,000 values 2 s."""
GRAMMAR_BYTES = 1 << 30
"""Memory to compile one grammar in."""
_PLAIN_BYTES = 1024
_KEPT_VERDICTS = 1 << 16
_FEWEST_CHILDREN, _MOST_CHILDREN = 4, 8  # at work at a time: a slow one must not hold up the rest
_DEATHS = 3  # of the process, after which the machine is to blame, and no grammar
# With these a short schema may take long. Without them one of 1 KB takes 1.3 s at most, but one of 4 KB 20 s:
# 463 fields that may all be absent and hold anything. A backslash may hide any of these words.
_COSTLY = ("pattern", '"format"', '"min', '"max', "$", "\\")


class GrammarPending(Exception):  # noqa: N818  no fault: the row comes again when the verdict is there
    """The verdict on a grammar is not there yet; ``key`` names the grammar."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True, slots=True)
class Grammar:
    """What is to be compiled; ``kind`` is json, regex, lark, grammar or tag."""

    kind: str
    text: str

    @property
    def plain(self) -> bool:
        """Whether it is sure to compile in a moment."""
        if self.kind not in ("json", "choice") or len(self.text) > _PLAIN_BYTES:
            return False
        return self.kind == "choice" or not any(word in self.text for word in _COSTLY)


class Grammars:
    """Asks the process, and keeps its verdicts. Owned by the thread that steps the engine.

    ``tokenizer`` gives xgrammar's description of the tokenizer, as JSON. The process begins with the first
    grammar that is not plain; it takes 270 MB.
    """

    def __init__(
        self,
        tokenizer: Callable[[], str],
        *,
        seconds: int = GRAMMAR_SECONDS,
        separators: tuple[str, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._seconds = seconds
        self._style = {"any_whitespace": separators is None, "separators": separators}
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[int, tuple[bytes, bytes]] = {}  # number -> key, line
        self._pending: set[bytes] = set()
        self._number = 0
        self._arrived: list[bytes] = []
        self._changed = threading.Condition()
        self._process: _Process | None = None
        self._setup = b""
        self._deaths = 0  # since the last verdict
        self._closed = False
        self._off = False

    def require(self, grammar: Grammar) -> None:
        """Return if the engine may compile ``grammar``.

        Raises:
            GrammarPending: ask again when `arrived` names it.
            RequestRefused: it takes too long, or too much memory, or ends the process that compiles it.
        """
        if grammar.plain or self._off:
            return
        named = f"{grammar.kind} {grammar.text}".encode(errors="replace")
        key = hashlib.blake2b(named, digest_size=16).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            if not self._ask(key, grammar):
                return
            raise GrammarPending(key)
        self._verdicts.move_to_end(key)
        if verdict == "time":
            longer = "or give it longer with the engine argument grammar_seconds"
            raise _refusal(f"took longer than {self._seconds} s of processor time", longer)
        if verdict == "memory":
            raise _refusal(f"took more than {GRAMMAR_BYTES >> 20} MiB of memory")
        if verdict != "ok":
            raise _refusal(
                f"killed its process ({verdict}): it takes too much memory, or crashes the compiler"
            )

    @property
    def waiting(self) -> bool:
        """Whether verdicts are to come, each within its own limit."""
        return bool(self._pending)

    def arrived(self, seconds: float) -> list[bytes]:
        """The grammars whose verdicts have come since the last call; waits up to ``seconds`` for one.

        Raises:
            EngineDeadError: the process dies whatever it is given.
        """
        with self._changed:
            if seconds and not self._arrived:
                self._changed.wait(seconds)
            found, self._arrived = self._arrived, []
            if self._deaths >= _DEATHS:
                raise EngineDeadError("the process that compiles grammars died", oom=True)
            while len(self._verdicts) > _KEPT_VERDICTS:
                self._verdicts.popitem(last=False)
        self._pending.difference_update(found)
        return found

    def close(self) -> None:
        """End the process."""
        with self._changed:
            self._closed = True
            process = self._process
        if process is not None:
            process.end()

    def _ask(self, key: bytes, grammar: Grammar) -> bool:
        """False where nothing can be asked: xgrammar does not know this tokenizer, and vLLM says so."""
        if key in self._pending:
            return True
        try:
            self._setup = self._setup or self._setup_line()
        except Exception as error:  # noqa: BLE001  a library's verdict on a tokenizer
            logger.warning("grammars are compiled without limits (%s)", type(error).__name__)
            self._off = True
            return False
        self._pending.add(key)
        self._number += 1
        order = {"id": self._number, "kind": grammar.kind, "text": grammar.text, **self._style}
        line = json.dumps(order).encode() + b"\n"
        with self._changed:
            self._asked[self._number] = key, line
            if self._process is None:
                self._process = _Process(self._setup, self._note, self._died)
            self._process.send(line)
        return True

    def _setup_line(self) -> bytes:
        setup = {
            "tokenizer": self._tokenizer(),
            "seconds": self._seconds,
            "bytes": GRAMMAR_BYTES,
            "children": min(max(_FEWEST_CHILDREN, os.cpu_count() or 1), _MOST_CHILDREN),
        }
        return json.dumps(setup).encode() + b"\n"

    def _note(self, number: int, verdict: str) -> None:
        """A verdict came; called by the process's reader."""
        with self._changed:
            key, _ = self._asked.pop(number)
            self._verdicts[key] = verdict
            self._arrived.append(key)
            self._deaths = 0
            self._changed.notify_all()

    def _died(self) -> None:
        """The process ended; the next one gets what it had not answered. Called by its reader."""
        with self._changed:
            if self._closed:
                return
            self._deaths += 1
            logger.warning("the process that compiles grammars died")
            if self._deaths < _DEATHS:
                self._process = _Process(self._setup, self._note, self._died)
                for _, line in self._asked.values():
                    self._process.send(line)
            self._changed.notify_all()


def _refusal(said: str, *more: str) -> RequestRefused:
    advice = ", ".join(("make it simpler, with fewer values, optional fields, counts or patterns", *more))
    return RequestRefused("invalid_json_schema", f"compiling the schema or grammar {said}; {advice}")


class _Process:
    """The process, with a thread that writes to it and one that reads: the engine's own waits for neither.

    The thread that reads also starts it: the process dies with the thread that did.
    """

    def __init__(
        self, setup: bytes, on_verdict: Callable[[int, str], None], on_death: Callable[[], None]
    ) -> None:
        self._starting = threading.Lock()
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._lines.put(setup)
        self._on_verdict = on_verdict
        self._on_death = on_death
        threading.Thread(target=self._live, name="dray-grammars", daemon=True).start()

    def send(self, line: bytes) -> None:
        """Have a grammar compiled."""
        self._lines.put(line)

    def end(self) -> None:
        """Kill it, and wait for that."""
        with self._starting:
            self._ended = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _live(self) -> None:
        """Start it, read its verdicts, and report its end."""
        try:
            with self._starting:
                if self._ended:
                    return
                process = self._process = _start()
            threading.Thread(target=self._write, args=(process,), name="dray-grammars", daemon=True).start()
            self._read(process)
        except OSError as error:  # too many processes or files, no memory: as if it had died
            logger.warning("the process that compiles grammars could not be started (%s)", error.strerror)
        finally:
            self._on_death()

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with suppress(OSError):  # its end is seen by the reader
            while (line := self._lines.get()) is not None:
                process.stdin.write(line)
                process.stdin.flush()
        with suppress(OSError):
            process.stdin.close()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            self._on_verdict(answer["id"], answer["verdict"])
        self._lines.put(None)
        process.wait()


def _start() -> subprocess.Popen[bytes]:
    quiet = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", grammar_process.__file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # xgrammar's warnings quote schemas
        env=os.environ | quiet,
    )
