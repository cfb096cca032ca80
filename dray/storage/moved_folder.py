"""Where a job's own file lies, once the user has moved the output folder that it was written in."""

from __future__ import annotations

from dray.storage.files import join, local_path
from dray.storage.folders import WORK
from dray.storage.objects import is_object


def moved_along(uri: str, folder: str) -> str:
    """The file ``OUTPUT/.dray/NAME/FILE``, below ``folder`` where it is there and not in OUTPUT any more.

    Other files, and those in an object store, are where they were. No two jobs have one NAME.
    """
    *_, work, name, file = ("", "", *uri.split("/"))
    if work != WORK or is_object(uri) or is_object(folder):
        return uri
    found = join(join(join(folder, WORK), name), file)
    try:
        moved = not local_path(uri).is_file() and local_path(found).is_file()
    except OSError:  # one of them is not for this account to see
        moved = False
    return found if moved else uri
