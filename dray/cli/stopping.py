"""Ctrl-C, SIGTERM and a terminal that closes, in a run of the command line."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from dray.cli import output, terminal
from dray.errors import FencedError, StoreError
from dray.job import current_job
from dray.processes import kill_descendants

if TYPE_CHECKING:
    from dray.job.open_job import OpenJob


@contextmanager
def signals_stop() -> Iterator[None]:
    """Ctrl-C or SIGTERM asks the job to stop and lets it write what it has; a second one ends all at once.

    So does SIGHUP, unless it is ignored (nohup); but another one, as shells send beside the terminal's, says
    nothing new.
    """
    asked = threading.Event()

    def on_interrupt(number: int, _frame: FrameType | None) -> None:
        signal.alarm(0)  # Ray's core takes a SIGTERM for a failure, and wants to abort 3 s later
        if number == signal.SIGHUP and asked.is_set():
            return
        if asked.is_set() or current_job.latest() is None:
            output.say("dray: stopped at once; run the same command again to go on")
            terminal.leave()
            kill_descendants()
            os._exit(130)
        asked.set()
        threading.Thread(target=_cancel, daemon=True).start()  # first of all: a word may fail
        output.say("dray: stopping; finished rows are kept (Ctrl-C again stops at once)")

    def take_over(_job: OpenJob) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_interrupt)

    heard = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_interrupt) for number in heard}
    try:
        # When the flow begins, Prefect puts its own handler for SIGTERM, which makes a crash of it.
        with current_job.calling(take_over):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel() -> None:
    from dray.job.cancelling import cancel

    job = current_job.latest()
    if job is None:
        return
    try:
        # A signal stops this run: the same command goes on. `dray cancel` cancels the job.
        cancel(job, for_good=False)
    except FencedError:
        output.say(f"dray: another driver has job {job.job_id}, and goes on with it; this run ends")
    except StoreError as error:
        output.say(
            f"dray: could not ask the store to cancel ({type(error).__name__}); Ctrl-C again stops at once"
        )
