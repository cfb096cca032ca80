"""A run as people see it in a terminal: its lines in order, a bar, and the terminal as it was before."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.command import ROOT, prefect_api, run_arguments, write_requests

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy]

# 8 tokens at 0.1 s, 16 at a time: about 5 s of inference, so that the bar moves.
SLOW = ("seconds_per_token=0.1", "max_num_seqs=16")


def test_lines_in_order_a_bar_and_the_terminal_given_back(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "in.jsonl", 100)
    arguments = run_arguments(requests, tmp_path / "out", settings=SLOW)
    code, out, screen = _in_a_terminal([word for word in arguments if word != "--json"])
    assert code == 0, screen
    assert out == ""  # what was asked for are files
    said = (
        "job job: ",
        "checking input, model, output and store",
        "starting Ray; Prefect is at http://127.0.0.1",
        "job job: new",
        "ingest: 100 requests",
        "starting 1 replica",
        "replica-0 ready",
        "━",
        "100 of 100 rows (100%)",
        "writing output, errors and report",
        "job job is completed",
        "rows      100 done",
    )
    places = [screen.find(text) for text in said]
    assert -1 not in places, screen
    assert places == sorted(places), screen
    words = re.sub(r"\x1b\[\d+m", "", screen)  # without colours
    assert re.search(r"━ +\d+ of 100 rows \([\d.]+%\) · [\d.]+ rows/s · ", words), screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")  # the cursor is shown again
    assert "Traceback" not in screen

    watched, told, _ = _in_a_terminal(["status", "job", "--watch", "--store", str(tmp_path / "out")])
    assert watched == 0
    assert told.splitlines()[0] == "job       job  completed"
    _, told, _ = _in_a_terminal(["status", "--store", str(tmp_path / "out"), "--json"])
    assert json.loads(told)["counts"] == {"total": 100, "done": 100, "failed": 0, "pending": 0}


def _in_a_terminal(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout (a pipe), and what the terminal that stderr is got."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PREFECT_API_URL": prefect_api(), "TERM": "xterm", "COLUMNS": "160"}
    for name in ("NO_COLOR", "CI"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "dray.cli", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    got: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(ours, got))
    reader.start()
    out, _ = process.communicate(timeout=240)
    reader.join(10)
    os.close(ours)
    return process.returncode, out.decode(), b"".join(got).decode()


def _drain(terminal: int, into: list[bytes]) -> None:
    while True:
        try:
            found = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            return
        if not found:
            return
        into.append(found)
