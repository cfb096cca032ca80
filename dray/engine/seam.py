"""One seam for Ray's errors: what a failed call to an actor means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dray.errors import DrayError, EngineDeadError, ReplicaLostError


@contextmanager
def ray_errors(replica: str) -> Iterator[None]:
    """Translate what Ray raises for a call to ``replica``.

    An error raised by our own code in the actor comes back as itself; a lost process, node or object
    becomes ReplicaLostError. Messages name the replica and the kind of loss, nothing else: Ray's own
    quote log lines of the dead process.
    """
    import ray.exceptions as ray_exceptions

    try:
        yield
    except ray_exceptions.RayTaskError as error:
        if isinstance(error.cause, DrayError):
            raise error.cause from None
        raise EngineDeadError(f"replica {replica}: {type(error.cause).__name__} inside it") from None
    except (
        ray_exceptions.RayActorError,
        ray_exceptions.ObjectLostError,
        ray_exceptions.NodeDiedError,
        ray_exceptions.WorkerCrashedError,
        ray_exceptions.OutOfMemoryError,
        ray_exceptions.ActorUnschedulableError,
        ray_exceptions.RaySystemError,
    ) as error:
        raise ReplicaLostError(f"replica {replica} was lost ({type(error).__name__})") from None
