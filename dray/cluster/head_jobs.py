"""Run a job's driver on the head of a cluster, as a job of Ray's: for machines that do not reach its network.

The machine that submitted it may go: its user follows the job through the store (``dray status --watch``),
and ends it by ``dray cancel``.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

from dray.errors import ClusterError, ConfigError, first_line
from dray.storage.addresses import VARIABLE, shows_secret

JOBS_PORT = 8265  # of Ray's dashboard, which listens on the head's loopback
_OPTION = re.compile(r"--[a-z][a-z-]*")
_AWAIT = f"""\
import socket, sys, time
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    try:
        socket.create_connection(("127.0.0.1", {JOBS_PORT}), 2).close()
        break
    except OSError:
        time.sleep(1)
"""


def driver_command(arguments: Sequence[str], python: str = "python") -> str:
    """The shell command of a driver on the head: the arguments of ``dray``, with the cluster that it is on.

    Raises:
        ConfigError: it does not run a job, or on another cluster; or an argument shows a login.
    """
    if not arguments or arguments[0] not in ("run", "resume"):
        raise ConfigError("name what is to run on the head as for `dray`: run INPUT ..., or resume JOB ...")
    if any(one.partition("=")[0] == "--cluster" for one in arguments):
        raise ConfigError("leave --cluster out: the job runs on the cluster that it is submitted to")
    _refuse_secrets(arguments)
    return shlex.join([python, "-m", "dray.cli", *arguments, "--cluster", "auto"])


def _refuse_secrets(arguments: Sequence[str]) -> None:
    """Ray and Systems Manager keep the command of a job, and the head's list of processes shows it."""
    for number, one in enumerate(arguments):
        if shows_secret(one):
            raise ConfigError(
                f"{_named(arguments, number)} shows a login or a signature, and others can read the command "
                f"that the head runs; give the URL of a database as {VARIABLE}NAME, a variable of the head; "
                "files and models take credentials from the head's environment"
            )


def _named(arguments: Sequence[str], number: int) -> str:
    """Which of the arguments it is, by its option if it has one; never its value."""
    option, given, _ = arguments[number].partition("=")
    if given and _OPTION.fullmatch(option):
        return option
    before = arguments[number - 1] if number else ""
    return f"argument {number + 1}" + (f", after {before}," if _OPTION.fullmatch(before) else "")


def submission_id() -> str:
    """A fresh name for a job of Ray's."""
    return f"dray-{secrets.token_hex(4)}"


def submit_over_http(url: str, command: str) -> str:
    """Have the head's jobs API start it; the submission's id. The token is the environment's.

    Raises:
        ClusterError: the API is out of reach, or refuses.
    """
    from ray.job_submission import JobSubmissionClient

    try:
        return str(JobSubmissionClient(url).submit_job(entrypoint=command, submission_id=submission_id()))
    except Exception as error:  # whatever Ray's client raises
        reason = first_line(error, 300, type(error).__name__)
        raise ClusterError(f"the jobs API at {url} did not take the job: {reason}") from error


def submit_there(command: str, python: str, seconds: float) -> tuple[str, str]:
    """What a shell on the head is to know: the submission's id, and the line that submits the command.

    It waits up to so many seconds for Ray's jobs API, since the head may still boot.
    """
    name = submission_id()
    submit = [python, "-m", "ray.scripts.scripts", "job", "submit", f"--address=http://127.0.0.1:{JOBS_PORT}"]
    words = [*submit, "--no-wait", f"--submission-id={name}", "--", *shlex.split(command)]
    wait = shlex.join([python, "-c", _AWAIT, str(seconds)])
    return name, f"{wait}; RAY_AUTH_MODE=token {shlex.join(words)}"
