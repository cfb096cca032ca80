"""Programs of the system that tests need, and that a machine may lack."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

CHROMIUM = Path("/usr/bin/chromium")  # Debian's package
POSTGRESQL = Path("/usr/lib/postgresql")  # Debian's package: a folder for each version


def postgres_binaries() -> Path | None:
    """The folder of PostgreSQL's programs, the newest of Debian's packages before others; None without."""
    found = [path.parent for path in POSTGRESQL.glob("*/bin/postgres")]
    if found:
        return max(found, key=_version)
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


def _version(binaries: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", binaries.parent.name)]


def missing_packages() -> list[str]:
    """For each program that is not here, what its tests do without it, and how to install it."""
    told, install = [], "On Debian: apt install"
    if postgres_binaries() is None:
        told.append(f"PostgreSQL is missing: tests of stores in it will fail. {install} postgresql")
    if not CHROMIUM.exists():
        told.append(f"Chromium is missing: tests of pages in a browser are skipped. {install} chromium")
    return told
