"""The tables of a new Prefect server, made once for a checkout: its migrations take ten seconds of a core."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

_MADE = Path(__file__).parents[2] / ".build" / f"prefect-{version('prefect')}.db"


def put_database(home: Path) -> None:
    """Give a ``PREFECT_HOME`` that has no database one with Prefect's tables, without rows."""
    database = home / "prefect.db"
    if not database.exists():
        shutil.copy(_made(), database)


def _made() -> Path:
    """The tables; of tests side by side the first makes them, and the others wait for it."""
    _MADE.parent.mkdir(exist_ok=True)
    with _MADE.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as home:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _MADE.exists():
            upgrade = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
            subprocess.run(upgrade, env={**os.environ, "PREFECT_HOME": home}, check=True, capture_output=True)
            shutil.copy(Path(home) / "prefect.db", _MADE.with_suffix(".new"))
            _MADE.with_suffix(".new").replace(_MADE)
    return _MADE
