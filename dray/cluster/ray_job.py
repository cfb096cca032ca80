"""What Ray keeps of this driver, and hands to its workers: the path of modules, and the command.

Both go by Ray's private modules; :mod:`dray.cluster.ray_private` has the others.
"""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import list2cmdline
from typing import Any

from dray.storage.addresses import shows_secret


def own_job_config() -> Any:
    """Ray's settings of this process's job: its workers import from the current folder where it does itself.

    Ray puts the driver's current folder before all else in the path of each worker: a file there, such as a
    downloaded model's, that has the name of a module would run on the nodes.
    """
    from ray.job_config import JobConfig

    class _AsHere(JobConfig):  # type: ignore[misc]  # Ray's private modules are untyped
        _py_driver_sys_path: list[str]

        def _serialize(self) -> str:
            here = {Path(one).resolve() for one in sys.path}  # "" is the current folder
            given = self._py_driver_sys_path
            self._py_driver_sys_path = [one for one in given if Path(one).resolve() in here]
            return super()._serialize()  # type: ignore[no-any-return]

    return _AsHere()


def show_no_secret_of_the_command() -> None:
    """Have Ray keep this process's command without URLs that show a login or a signature.

    It keeps the command of each driver, also of those that ended, and shows it on its page and to each that
    may list the cluster's jobs.
    """
    from ray._private import utils

    getattr(utils, "get_entrypoint_name")  # noqa: B009  an error where Ray has none now
    setattr(utils, "get_entrypoint_name", _own_command)  # noqa: B010


def _own_command() -> str:
    return list2cmdline([_without_secret(word) for word in sys.orig_argv])


def _without_secret(word: str) -> str:
    if not shows_secret(word):
        return word
    option, given, _ = word.partition("=")
    return f"{option}=***" if given and word.startswith("-") else "***"
