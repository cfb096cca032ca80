"""One seam for Ray's errors: what a failed call to an actor means."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from dray.errors import (
    CancelledError,
    ConfigError,
    DrayError,
    EngineDeadError,
    EngineError,
    NoRoomError,
    NotImportedError,
    ReplicaLostError,
)
from dray.failures.foreign import Sign, sign_of_class
from dray.failures.signs import facts_of

# What Python says, in Ray's message, where it unpickles what another version of a package made.
_NOT_IMPORTED = re.compile(
    r"^(?:ModuleNotFoundError: .*|ImportError: .*|AttributeError: Can't get attribute .*"
    r"|TypeError: .*__init__\(\) .*argument.*)$",
    re.MULTILINE,
)


def not_imported(error: object) -> str | None:
    """What a node could not import, as Python told Ray; None where ``error`` is about something else."""
    found = _NOT_IMPORTED.findall(str(error))
    return str(found[-1])[:200] if found else None


def import_error(where: str, why: str) -> NotImportedError:
    """The error in words; ``where`` names the node."""
    told = f"{where} cannot import what the driver has ({why})"
    return NotImportedError(f"{told}; give the nodes the driver's version of dray", where=where, why=why)


@contextmanager
def ray_errors(replica: str) -> Iterator[None]:
    """Translate what Ray raises for a call to ``replica``, as ``failures/foreign.py`` reads it.

    An error raised by our own code in the actor comes back as itself. Messages name the replica and the kind
    of loss, nothing else: Ray's own quote log lines of the dead process.
    """
    import ray.exceptions as ray_exceptions

    try:
        yield
    except ray_exceptions.RayTaskError as error:
        if isinstance(error.cause, DrayError):
            raise error.cause from None
        sign, name = facts_of(error).sign, type(error.cause).__name__
        if sign is Sign.NO_ROOM:  # for what it returned: the engine is well
            raise NoRoomError(f"replica {replica}: {name} on its node") from None
        raise EngineDeadError(f"replica {replica}: {name} inside it", oom=sign is Sign.OOM) from None
    except ray_exceptions.RayError as error:
        raise _translated(error, replica) from None


def _translated(error: Exception, replica: str) -> DrayError:
    name = type(error).__name__
    sign = sign_of_class(type(error))
    if getattr(error, "actor_init_failed", False) and (why := not_imported(error)):
        return import_error(f"the node of replica {replica}", why)
    if sign in (Sign.LOST, Sign.OOM):
        told = facts_of(error)
        return ReplicaLostError(
            f"replica {replica} was lost ({name})",
            oom=sign is Sign.OOM,
            preempted=told.preempted,
            unsure=isinstance(error, _unsure()),
        )
    if sign is Sign.NO_ROOM:
        return NoRoomError(f"replica {replica}: {name} on node {socket.gethostname()}")
    if sign is Sign.CANCELLED:
        return CancelledError(f"the call to replica {replica} was cancelled")
    if sign is Sign.REFUSED:
        return ConfigError(
            f"Ray refuses the call to replica {replica} ({name}): is the cluster's token right?"
        )
    return EngineError(f"replica {replica}: {name}")


def _unsure() -> tuple[type[Exception], ...]:
    """Errors of a call, not of the actor: Ray raises others once it knows that the actor is dead."""
    from ray.exceptions import ActorUnavailableError, GetTimeoutError, RpcError

    return ActorUnavailableError, GetTimeoutError, RpcError
