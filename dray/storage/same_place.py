"""One folder may be spelled in several ways: from a folder above it, or through a link or another mount."""

from __future__ import annotations

import os
from contextlib import suppress

from dray.storage.files import local_path
from dray.storage.objects import is_object


def same_place(one: str, other: str) -> bool:
    """Whether two addresses name one folder or file of this machine, or are one URI.

    The kernel is asked: after a link, ``..`` leads elsewhere than the text says.
    """
    if is_object(one) or is_object(other):
        return one.rstrip("/") == other.rstrip("/")
    here, there = local_path(one), local_path(other)
    with suppress(OSError):
        return here.samefile(there)
    return os.path.realpath(here) == os.path.realpath(there)  # one of them is not there


def name_in(folder: str, path: str) -> str | None:
    """The name of a local file below a folder, however that is spelled; None where the file is elsewhere.

    Links below the folder stay in the name: what they lead to is the folder's, too.
    """
    file = local_path(path)
    above = next((parent for parent in file.parents if same_place(str(parent), folder)), None)
    return None if above is None else str(file.relative_to(above))
