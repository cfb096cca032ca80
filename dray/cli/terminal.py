"""The live part of a terminal: a bar below the lines of a run, or a screen that is rewritten."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from dray.report.progress import Pulse

_BAR_WIDTH = 40
_LEAST_BAR = 10  # on a narrower rest of the line there is no bar, only the words
_PLAIN_VARIABLES = ("NO_COLOR", "CI")

_live: Live | None = None  # what is on the terminal now: one process has one


def is_plain(*, json: bool = False) -> bool:
    """Whether people or programs get lines, and nothing that moves."""
    return (
        json
        or not sys.stderr.isatty()
        or os.environ.get("TERM") == "dumb"
        or any(os.environ.get(name) for name in _PLAIN_VARIABLES)
    )


def write(text: str, *, needed: bool = False) -> None:
    """A line on stderr, above what is live there. Where stderr is gone, the work goes on without it.

    Raises:
        BrokenPipeError: nothing reads stderr any more, and the line is ``needed``.
    """
    try:
        if _live is None:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
            return
        from rich.text import Text

        _live.console.print(Text(text), soft_wrap=True)
    except OSError as error:
        if not is_gone(error):  # a full disk
            return
        discard(sys.stderr)
        if needed:
            raise BrokenPipeError from error


def is_gone(error: OSError) -> bool:
    """Whether nothing will read a stream any more: its reader has ended, or its terminal has hung up."""
    return isinstance(error, BrokenPipeError) or error.errno == errno.EIO


def discard(stream: TextIO) -> None:
    """Lead a stream nowhere, as its reader is gone: Python's end would complain of what is left in it."""
    with suppress(OSError, ValueError):  # it is no file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_live() -> bool:
    """Whether something on the terminal is rewritten again and again."""
    return _live is not None


def leave() -> None:
    """Give the terminal back as it was; for a process that ends at once."""
    if _live is not None and sys.__stderr__ is not None:
        with suppress(OSError):
            sys.__stderr__.write("\n\x1b[?25h")  # the cursor, which a live part hides
            sys.__stderr__.flush()


class Bar:
    """The last line of a run: a clock until the first rows, then a bar, rows, rates and the time left."""

    def __init__(self, console: Console) -> None:
        from rich.spinner import Spinner

        self._console = console
        self._began = time.monotonic()
        self._pulse: Pulse | None = None
        self._spinner = Spinner("dots")

    def hear(self, pulse: Pulse) -> None:
        """How far the job is by now."""
        self._pulse = pulse

    def face(self) -> RenderableType:
        """What it looks like now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        pulse = self._pulse
        if pulse is None:
            self._spinner.update(text=f"{time.monotonic() - self._began:.0f} s")
            return self._spinner
        told = Text(pulse.line)
        width = min(_BAR_WIDTH, self._console.width - told.cell_len - 2)
        line = Table.grid(padding=(0, 2, 0, 0))
        if width >= _LEAST_BAR:
            line.add_column(width=width)
        line.add_column(no_wrap=True, overflow="ellipsis")
        cells: list[RenderableType] = [
            ProgressBar(total=max(pulse.total, 1), completed=pulse.finished, width=width),
            told,
        ]
        line.add_row(*cells[-len(line.columns) :])
        return line


@contextmanager
def bar(*, plain: bool, console: Console | None = None) -> Iterator[Bar | None]:
    """A bar below all that is said in the block; None where lines must do."""
    if plain:
        yield None
        return
    console = console or _console()
    shown = Bar(console)
    with _alive(console, shown.face):
        yield shown


@contextmanager
def screen(*, plain: bool) -> Iterator[Callable[[Sequence[str]], None] | None]:
    """Lines that replace those before them; None where lines must do."""
    if plain:
        yield None
        return
    from rich.text import Text

    lines: list[str] = []
    with _alive(_console(), lambda: Text("\n".join(lines), no_wrap=True, overflow="ellipsis")):

        def show(found: Sequence[str]) -> None:
            lines[:] = found

        yield show


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def _alive(console: Console, face: Callable[[], RenderableType]) -> Iterator[None]:
    global _live
    from rich.live import Live

    live = Live(
        console=console,
        get_renderable=face,
        refresh_per_second=4,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what a library prints there goes above the live part too
        redirect_stderr=True,
    )
    live.start()
    _live = live
    try:
        yield
    finally:
        _live = None
        try:
            live.stop()
        except OSError:  # its terminal has hung up
            discard(sys.stderr)
