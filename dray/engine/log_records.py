"""What the log of a process says: the text of a record, and the latest records until they are taken."""

from __future__ import annotations

import logging
from collections import deque

_MOST = 1000
_LONGEST = 2000
_OF_ANSWERS = ("vllm.tool_parsers.", "vllm.parser.", "vllm.reasoning.")  # they quote what a model said


def message_of(record: logging.LogRecord) -> str:
    """The record's text, without its arguments where these may be words of an answer.

    Where they do not fit, its place: no handler may raise for that.
    """
    if record.name.startswith(_OF_ANSWERS):
        return str(record.msg)
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  of a library's own objects: any, and the engine is not to end by it
        return f"a line of the log whose text cannot be made, at {record.filename}:{record.lineno}"


class LatestRecords(logging.Handler):
    """Keeps the latest records until they are taken."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: deque[tuple[int, str, str]] = deque(maxlen=_MOST)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._kept.append((record.levelno, record.name, message_of(record)[:_LONGEST]))

    def take(self) -> list[tuple[int, str, str]]:
        """Level, logger and message of each record since the last call."""
        return [self._kept.popleft() for _ in range(len(self._kept))]


def keep_log() -> LatestRecords:
    """Keep what dray and vLLM log from now on."""
    kept = LatestRecords()
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)  # says three times that a CPU is no GPU
    for name in ("dray", "vllm"):
        target = logging.getLogger(name)
        target.addHandler(kept)
        if target.level in (logging.NOTSET, logging.WARNING):
            target.setLevel(logging.INFO)
    return kept
