"""The store of a command that names none: that of ``$DRAY_STORE``, where the variable is set."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from dray.errors import ConfigError
from dray.job.options.request import BLOCK, JobRequest
from dray.storage.addresses import VARIABLE, masked_url, without_variable
from dray.storage.default_store import FILE_SUFFIXES, STORE_VARIABLE, default_store
from dray.storage.objects import is_object

_SQLITE = "sqlite:///"
_FILE = "dray.db"


def with_default_store(request: JobRequest) -> JobRequest:
    """The request of a run, with the variable's store where it names none; otherwise the same.

    The URL of a database stays in the variable: it may hold a login.

    Raises:
        ConfigError: the output folder holds the store of an earlier run, and the variable names another:
            the job would begin anew there.
    """
    given = default_store()
    if request.store is not None or given is None:
        return request
    _refuse_two(request.output, given)
    is_database = "://" in given and not given.startswith(_SQLITE)
    store = f"{VARIABLE}{STORE_VARIABLE}" if is_database else _in_folder(given)
    return request.model_copy(update={"store": store}).anchored()


def _in_folder(given: str) -> str:
    """The file in the folder that ``given`` names, which need not be there yet; anything else as it is."""
    path = os.path.expanduser(given)  # noqa: PTH111  of `os.path`, which raises for no name
    named = "://" in given or given.startswith((BLOCK, VARIABLE)) or os.path.isfile(path)  # noqa: PTH113
    if named or masked_url(given) != given:  # a login whose scheme was forgotten: preflight refuses it
        return given
    is_file = given.endswith(FILE_SUFFIXES) and not os.path.isdir(path)  # noqa: PTH112
    return given if is_file else os.path.join(given, _FILE)  # noqa: PTH118


def _refuse_two(output: str, given: str) -> None:
    own = None if is_object(output) else Path(output) / _FILE
    if own is not None and own.exists() and not _is_file(own, given):
        raise ConfigError(
            f"{own} is the store of an earlier run, and ${STORE_VARIABLE} names another one, where the job "
            f"would begin anew: give --store {shlex.quote(output)} to go on with the folder's own, or name "
            "the other by --store, too"
        )


def _is_file(file: Path, given: str) -> bool:
    """Whether ``given`` names the SQLite file, by its path, its URL or its folder."""
    if given.startswith(BLOCK):
        return False
    named = Path(without_variable(given).removeprefix(_SQLITE)).expanduser()
    named = named / file.name if named.is_dir() else named
    return named.exists() and named.samefile(file)
