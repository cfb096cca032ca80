"""What a user of the soak does beside a job."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from dray.cli.jobs import export_job
from dray.errors import ConfigError


def exported(job: str, store_url: str, folder: Path) -> tuple[bytes, ...]:
    """The lines that an export of ``job`` to ``folder`` wrote."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        export_job(job, str(folder), "jsonl", store_url, json=True)
    return tuple((folder / "output.jsonl").read_bytes().splitlines(keepends=True))


def refused_with(job: str, act: Callable[[], object]) -> None:
    """``act`` is refused, and the message names the job whose folder that is."""
    try:
        act()
    except ConfigError as error:
        assert job in str(error), f"I7: the refusal does not name the folder's job: {error}"
    else:
        raise AssertionError("I7: the folder of a job was given to others")
