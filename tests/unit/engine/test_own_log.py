"""An error of an engine's part says where the part's log is."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dray.engine.start_errors import with_log
from dray.errors import DrayError, EngineDeadError, EngineStartError, ReplicaLostError, WeightsError

pytestmark = pytest.mark.unit

PROGRAM = "import sys; from dray.engine.own_log import own_log; open(sys.argv[1], 'w').write(own_log())"


def said(folder: Path, *, out: str | None, err: str | None) -> str:
    """Of a process whose output and errors go to these files, as Ray's workers have them; None for a pipe."""
    files = [subprocess.PIPE if name is None else (folder / name).open("w") for name in (out, err)]
    told = folder / "told"
    subprocess.run([sys.executable, "-c", PROGRAM, told], check=True, stdout=files[0], stderr=files[1])
    return told.read_text()


def test_the_files_of_a_process_are_named_with_its_machine(tmp_path: Path) -> None:
    out, err, host = tmp_path / "worker.out", tmp_path / "worker.err", socket.gethostname()
    assert said(tmp_path, out="worker.out", err="worker.err") == f"{host}:{out}, {err}"
    assert said(tmp_path, out="worker.out", err="worker.out") == f"{host}:{out}"
    assert said(tmp_path, out=None, err="worker.err") == f"{host}:{err}"


@pytest.mark.parametrize(
    "error",
    [
        EngineDeadError("a rank's process ended", oom=True),
        EngineStartError("ValueError: no such layer", oom=True),
        ReplicaLostError("it was lost", oom=True, preempted=True),
        WeightsError("it cannot be read"),
    ],
)
def test_an_error_stays_what_it_is(error: DrayError) -> None:
    text, known = str(error), vars(error)
    told = with_log(error, "host:/tmp/worker.err")
    assert type(told) is type(error)
    assert str(told) == f"{text}; its log: host:/tmp/worker.err"
    assert vars(told) == known
    assert str(error) == text
