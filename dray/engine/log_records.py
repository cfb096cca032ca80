"""The latest records of a process's log, for the driver: a replica hands on what it logged when it is asked.

Of vLLM these are warnings, each once, and how often at its 10th, 100th and 1,000th time: it warns of some
rows each time that one comes. And where vLLM may quote a row or an answer, its words are left out.
"""

from __future__ import annotations

import copy
import logging
import traceback
from collections import Counter, deque

_MOST = 1000
_LONGEST = 2000
# Of Ray's settings, of dray's own calls, and of libraries that could be preloaded on CPUs.
_UNTOLD = ("vllm.utils.torch_utils", "vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker")
_OF_ANSWERS = ("vllm.tool_parsers.", "vllm.parser.", "vllm.reasoning.")  # they quote what a model said
# While rows come, these quote what a row says; before, they say how the engine starts.
_OF_ROWS = (
    "vllm.entrypoints.",
    "vllm.inputs.",
    "vllm.multimodal.",
    "vllm.renderers.",
    "vllm.sampling_params",
    "vllm.tokenizers.",
)


def message_of(record: logging.LogRecord, *, rows: bool = False) -> str:
    """The record's text, without the words of an answer; with ``rows``, without those of a row either.

    Where its arguments do not fit, its place: no handler may raise for that.
    """
    try:
        return _without_texts(record) if _may_quote(record, rows=rows) else record.getMessage()
    except Exception:  # noqa: BLE001  of a library's own objects: any, and the engine is not to end by it
        return f"a line of the log whose text cannot be made, at {record.filename}:{record.lineno}"


def without_error_text(record: logging.LogRecord) -> bool:
    """Keep of a record's error its class and where it came from: its text may quote a request.

    Changes the record. It is True, so that a logger takes this function as a filter.
    """
    if record.exc_info and record.exc_info[0] is not None:
        kind, _, trace = record.exc_info
        record.exc_text = "".join(traceback.format_tb(trace)) + kind.__name__
        record.exc_info = None
    return True


def _may_quote(record: logging.LogRecord, *, rows: bool) -> bool:
    """Whether vLLM may quote an answer there or, where ``rows`` come, a row."""
    return record.name.startswith(_OF_ANSWERS) or (rows and record.name.startswith(_OF_ROWS))


def _without_texts(record: logging.LogRecord) -> str:
    """The record's text with ``...`` for each argument that is no number."""
    if not isinstance(record.args, tuple):
        return str(record.msg)
    try:
        return str(record.msg) % tuple(one if isinstance(one, int | float) else "..." for one in record.args)
    except (TypeError, ValueError):
        return str(record.msg)


class LatestRecords(logging.Handler):
    """Keeps the latest records until they are taken.

    What vLLM says goes on to ``onward``, its own handlers, whose output stays on the node: all of it, whole,
    and without words of rows. Each thing is said as often as to the driver, but for what is below INFO.
    """

    def __init__(self) -> None:
        super().__init__()
        self.onward: list[logging.Handler] = []
        self._kept: deque[tuple[int, str, str]] = deque(maxlen=_MOST)
        self._said: Counter[tuple[str, int, str]] = Counter()
        self._rows = False

    def rows_come(self) -> None:
        """Note that the engine is given rows from now on."""
        self._rows = True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, unless vLLM has said that."""
        text = message_of(record, rows=self._rows)
        again = self._again(record, text)
        if again is None:
            return
        ours = not record.name.startswith("vllm")
        if record.levelno >= (logging.INFO if ours else logging.WARNING) and record.name not in _UNTOLD:
            self._kept.append((record.levelno, record.name, text[:_LONGEST] + again))
        for handler in self.onward:
            if record.levelno >= handler.level:
                handler.handle(self._saying(record, text + again))

    def take(self) -> list[tuple[int, str, str]]:
        """Level, logger and message of each record since the last call."""
        return [self._kept.popleft() for _ in range(len(self._kept))]

    def _again(self, record: logging.LogRecord, text: str) -> str | None:
        """What to add to a text that was said before; None where it is not to be said again."""
        if not record.name.startswith("vllm") or record.levelno < logging.INFO:
            return ""
        times = self._times(record, text[:_LONGEST])
        if times == 1:
            return ""
        return f" ({times:,} times by now)" if str(times).strip("0") == "1" else None

    def _times(self, record: logging.LogRecord, text: str) -> int:
        """How often that was said. Warnings of one sort are one, whatever their arguments."""
        sort = record.msg if isinstance(record.msg, str) and record.levelno >= logging.WARNING else text
        if len(self._said) >= _MOST:
            self._said.clear()
        key = record.name, record.levelno, text if sort == "%s" else sort  # "%s": of the engine's core
        self._said[key] += 1
        return self._said[key]

    def _saying(self, record: logging.LogRecord, text: str) -> logging.LogRecord:
        found = copy.copy(record)
        found.msg, found.args = text, None
        if _may_quote(record, rows=self._rows):
            without_error_text(found)
        return found


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


def keep_on() -> None:
    """Keep what vLLM logs after it has set up its own log, which takes away the handlers of others.

    The handlers that it has set up come after :func:`keep_log`'s: they get what that keeps.
    """
    vllm = logging.getLogger("vllm")
    ours = [one for one in logging.getLogger("dray").handlers if isinstance(one, LatestRecords)]
    if not ours:
        return
    for handler in [one for one in vllm.handlers if type(one) is logging.StreamHandler]:
        vllm.removeHandler(handler)
        ours[-1].onward = [handler]
    for one in ours:
        vllm.addHandler(one)  # one that is there already is not added again
