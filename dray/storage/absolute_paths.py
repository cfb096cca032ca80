"""A local path as seen from any working directory, and without ``..``: jobs keep paths, and folders go."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dray.errors import ConfigError
from dray.storage.addresses import refuse_slip

_STAYS = re.compile(r"[*?\[]|^\.\.$")
"""What ``..`` stays behind: a pattern, which may match links, and one that stays itself."""


def absolute(path: str, *, as_given: bool = False) -> str:
    """A local path as seen from any working directory, with ``..`` only ``as_given``; URIs stay as they are.

    Raises:
        ConfigError: it is a URI with a slash too few, or in the home folder of no user.
    """
    refuse_slip(path)
    try:
        if "://" in path:
            return path
        return str(Path(path).expanduser().absolute() if as_given else absolute_path(path))
    except RuntimeError:
        raise ConfigError(f"{path}: there is no such user, so no home folder") from None


def absolute_path(given: str | Path) -> Path:
    """The path from the root, without ``..``.

    It leads where the kernel finds the file: after a link, ``..`` is the folder above what that leads to.
    All other links stay as they are spelled.

    Raises:
        RuntimeError: it is in the home folder of no user.
    """
    path = Path(given).expanduser().absolute()
    found = Path(path.anchor)
    for part in path.relative_to(found).parts:
        if part != ".." or _STAYS.search(found.name):
            found /= part
        elif os.path.islink(found):  # noqa: PTH114  raises for no name, however long
            found = Path(os.path.realpath(found)).parent
        else:
            found = found.parent
    return found
