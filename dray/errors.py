"""Every error that dray raises on purpose.

::

    DrayError
    +-- RefusedError                 refused before work starts: exit code 2
    |   +-- InputError               problems in the input, each with file, line and field
    |   +-- ConfigError              a setting, a model path, a URL that cannot be used
    |   |   `-- WeightsError         weights that are damaged, incomplete or not what they say
    |   +-- JobChangedError          same job id, other content
    |   +-- JobBusyError             another live driver holds the job
    |   `-- UnknownJobError          no such job in this store
    +-- StoreError
    |   +-- StoreUnreachableError    no connection could be made
    |   |   `-- NoStoreError         nothing is there yet; this is a ConfigError, too
    |   +-- StoreTransientError      worth retrying: lock, lost connection, serialisation
    |   |   `-- NoConnectionError    the server has none left; this is a StoreUnreachableError, too
    |   +-- StoreFatalError          disk full, schema mismatch, read-only: an operator must act
    |   |   +-- StoreRefusedError    the server refuses the user, the password or the database: exit code 2
    |   |   `-- ValueTooLargeError   a value is larger than the database takes
    |   +-- LeaseLapsedError         it expired: store or holder could not be reached; perhaps none holds it
    |   `-- FencedError              the lease was lost; drop the work, do not retry
    +-- EngineError
    |   +-- RequestRefused           one request cannot be honoured; becomes its error row
    |   +-- EngineDeadError          the engine cannot go on; its process exits
    |   +-- EngineStartError         the engine never became ready
    |   |   `-- NotImportedError     its node cannot import what the driver has
    |   +-- ReplicaLostError         the actor or its node went away
    |   |   `-- ReplicaLeftError     it was drained: what it had not finished goes elsewhere
    |   `-- NoRoomError              Ray has no room on a node for rows on their way
    +-- InterruptedShardError        one attempt at a shard ended early, and another follows
    +-- ClusterError                 the Ray cluster could not be started or reached
    +-- JobFailedError               the job ended without finishing: exit code 1
    |   `-- JobPausedError           it stops until a user acts, and goes on from there: exit code 1
    |       `-- JobBlockedError      waiting does not help, as where the budget is spent
    +-- ExpiredError                 the job's time is over
    `-- CancelledError               the job was cancelled: exit code 130

Messages name files, lines, fields and codes; never prompts, answers or secrets.
Foreign errors are translated at one seam per library: ``store/database/seam.py`` (SQLAlchemy),
``engine/ray_errors.py`` (Ray actors), ``engine/vllm_adapter/errors.py`` (vLLM), ``storage/faults.py`` (object
stores), ``storage/files.py`` (files),
``cluster/providers/*/errors.py`` (EC2, Kubernetes).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.codes import ErrorCode


class DrayError(Exception):
    """Base of every error raised by dray."""

    exit_code = 1


class RefusedError(DrayError):
    """Refused before any engine started."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the input: what, where, and what to do about it."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        field = f" [{self.field}]" if self.field else ""
        return f"{place}{field}: {self.message}" if place else f"{self.message}{field}"


class InputError(RefusedError):
    """The input cannot be used. ``problems`` holds up to the first 20, in input order.

    ``advice`` is what can be done about all of them.
    """

    def __init__(
        self, problems: Sequence[Problem], *, total: int | None = None, advice: str | None = None
    ) -> None:
        self.problems = tuple(problems)
        self.total = total if total is not None else len(self.problems)
        self.advice = advice
        super().__init__(self.problems, self.total)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        if self.total > len(lines):
            lines.append(f"... and {self.total - len(lines)} more")
        if self.advice is not None:
            lines.append(self.advice)
        return "\n".join(lines)


class ConfigError(RefusedError):
    """A setting cannot be used; the message says which one and what to do."""


class WeightsError(ConfigError):
    """Weights are damaged, incomplete or not what they say; the message names file and tensor."""


class JobChangedError(RefusedError):
    """The job id is taken by a job with other content; the message names what changed."""


class JobBusyError(RefusedError):
    """Another live driver is running this job. ``left``: seconds that its lease has, unless it is renewed."""

    def __init__(self, message: str, *, left: float = 0.0) -> None:
        super().__init__(message)
        self.left = left


class UnknownJobError(RefusedError):
    """The store holds no job of this id."""


class StoreError(DrayError):
    """Base of errors of the result store.

    Messages travel to Prefect's pages and into events: they name the database, never its user or host.
    ``address`` says where it is, its password masked, for the terminal of the user who gave it.
    """

    address: str | None = None


class StoreUnreachableError(StoreError):
    """No connection to the store could be made."""

    exit_code = 2


class NoStoreError(StoreUnreachableError, ConfigError):
    """No store is there: no such file or folder, or a database without dray's tables."""


class StoreTransientError(StoreError):
    """The statement may succeed when tried again."""


class NoConnectionError(StoreUnreachableError, StoreTransientError):
    """The server has no connection left for this process: it is up, and others hold all that it allows."""


class StoreFatalError(StoreError):
    """The store cannot take writes until an operator acts."""


class StoreRefusedError(StoreFatalError):
    """The server takes no connection to this database by this user and password."""

    exit_code = 2


class ValueTooLargeError(StoreFatalError):
    """A value is larger than the database takes."""


class FencedError(StoreError):
    """Another driver or shard task has the lease now; the former holder drops its work."""


class LeaseLapsedError(StoreError):
    """The lease could not be renewed in time, by the holder's own clock; or its replica gave it up."""


class EngineError(DrayError):
    """Base of errors of replicas and engines."""


class RequestRefused(EngineError):  # noqa: N818  a verdict on one request, not a failure of the engine
    """One request cannot be honoured. ``code`` and ``message`` go into its error row."""

    def __init__(self, code: ErrorCode, message: str, *, param: str | None = None) -> None:
        super().__init__(code, message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param


class EngineDeadError(EngineError):
    """The engine cannot go on; the replica's process exits at once.

    ``oom``: memory did not suffice. ``stuck``: it stood still, and was ended for that.
    """

    def __init__(self, message: str, *, oom: bool = False, stuck: bool = False) -> None:
        super().__init__(message)
        self.oom = oom
        self.stuck = stuck


class EngineStartError(EngineError):
    """The engine never became ready. ``oom``: memory did not suffice."""

    exit_code = 1

    def __init__(self, message: str, *, oom: bool = False) -> None:
        super().__init__(message)
        self.oom = oom


class NotImportedError(EngineStartError):
    """A replica's node, ``where``, cannot import what the driver has. ``why`` is what Python says of it."""

    def __init__(self, message: str, *, where: str = "", why: str = "") -> None:
        super().__init__(message)
        self.where = where
        self.why = why


class ReplicaLostError(EngineError):
    """The replica's process or its node went away. ``oom`` and ``preempted`` are as Ray reports them.

    ``unsure``: a call did not get through, and it may live.
    """

    def __init__(
        self, message: str, *, oom: bool = False, preempted: bool = False, unsure: bool = False
    ) -> None:
        super().__init__(message)
        self.oom = oom
        self.preempted = preempted
        self.unsure = unsure


class ReplicaLeftError(ReplicaLostError):
    """The replica's node is being taken back: it took in no more, and what it had not finished is dropped."""

    def __init__(self, message: str) -> None:
        super().__init__(message, preempted=True)


class NoRoomError(EngineError):
    """Ray's object store on a node is full, and so is the disk behind it. The engine is well."""


class InterruptedShardError(DrayError):
    """An attempt at a shard ended early, and another follows. The message says why, and what was kept."""


class ClusterError(DrayError):
    """The Ray cluster could not be started, reached or trusted."""


class JobFailedError(DrayError):
    """The job ended without finishing."""


class JobPausedError(JobFailedError):
    """The job stops until a user acts; then ``dray resume`` goes on with it. Nothing is lost."""


class JobBlockedError(JobPausedError):
    """The job stops until a user changes something: without that it would stop there again."""


class ExpiredError(DrayError):
    """The job's time is over; finished rows are kept."""


class CancelledError(DrayError):
    """The job was cancelled; finished rows are kept. ``at``: when, in seconds since 1970, if known."""

    exit_code = 130

    def __init__(self, message: str = "", *, at: float | None = None) -> None:
        super().__init__(message)
        self.at = at


_DRAY = Path(__file__).parent
_NOTED = "dray: raised"


def raised_at(error: BaseException) -> str:
    """Where an error that is not dray's own was raised, as " at FILE:LINE"; empty where that is unknown.

    The error's message may quote a row. This names the last of dray's lines, and the line of another package
    that the error came from.
    """
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(Path(frame.f_code.co_filename), number) for frame, number in frames]
    ours = [line for line in lines if _DRAY in line[0].parents]
    places = dict.fromkeys(f"{file.name}:{number}" for file, number in [*ours[-1:], *lines[-1:]])
    return f" at {', raised in '.join(places)}" if places else ""


def first_line(error: BaseException, most: int | None = None, otherwise: str = "") -> str:
    """The first line of an error's text: what follows may quote requests, addresses or values.

    It is cut to ``most`` characters. An error without text gives ``otherwise``.
    """
    return next(iter(str(error).strip().splitlines()), otherwise)[:most]


@contextmanager
def raised_noted() -> Iterator[None]:
    """Errors that leave the block, and are not dray's own, keep their place on the way to another process."""
    try:
        yield
    except DrayError:
        raise
    except Exception as error:
        error.add_note(f"{_NOTED}{raised_at(error)}")
        raise


def noted_at(error: BaseException) -> str:
    """The same of an error that came from another process: what :func:`raised_noted` noted there."""
    notes: list[str] = getattr(error, "__notes__", [])
    return next((note.removeprefix(_NOTED) for note in notes if note.startswith(_NOTED)), "")
