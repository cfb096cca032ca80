"""Where Prefect's own server keeps its database, where its usual place will not do."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dray.cli.prefect_settings import prefect_home, setting
from dray.storage.file_system import file_system_of

_WHERE = ("connection_url", "driver", "host", "name")  # Prefect's settings of where its database is
_LASTING = Path("/var/tmp")  # noqa: S108  a folder of this user's own in it


def moved_database(settings: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Prefect's settings for a server whose usual place will not do, and a line that says why.

    A database that the user configured stays. Machines that share a home would write to one file of SQLite's
    there, each with shared memory of its own, and damage it.
    """
    home = prefect_home().absolute()
    found = file_system_of(home / "prefect.db")
    if found.network:
        why = f"{home} is on a network's file system ({found.kind}), which other machines may write to"
    elif not _writable(home):
        why = f"{home} cannot be written to"
    else:
        return {}, None
    place = None if _is_configured(settings) else _own_folder()
    if place is None:  # without a folder: the server says what it lacks
        return {}, None
    told = {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{place / 'prefect.db'}"}
    if not _writable(home):
        told["PREFECT_HOME"] = str(place)
    return told, f"Prefect's own server keeps its database in {place}: {why}"


def _is_configured(settings: Mapping[str, str]) -> bool:
    names = [
        (f"PREFECT_{group}_DATABASE_{key.upper()}", key) for group in ("API", "SERVER") for key in _WHERE
    ]
    return any(name in settings or setting(name, "server", "database", key) for name, key in names)


def _writable(home: Path) -> bool:
    """Whether this process may make and change files there."""
    database = home / "prefect.db"
    exists = os.path.exists  # Path.exists raises where this user may not look
    if exists(database) and not os.access(database, os.W_OK):
        return False
    nearest = next(folder for folder in (home, *home.parents) if exists(folder))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _own_folder() -> Path | None:
    """A local folder that no other user can read or put anything into; None where none can be made."""
    for base in (_LASTING, Path(tempfile.gettempdir())):
        folder = base / f"dray-{os.getuid()}-prefect"
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()  # others may have put a link under this name
            closed = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
            if closed and os.access(folder, os.W_OK) and not file_system_of(folder / "prefect.db").network:
                return folder
    return None
