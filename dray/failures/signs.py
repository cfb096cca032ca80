"""What an error says by itself: dray's own, the system's, and a library's that no seam has translated."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from dray import errors
from dray.failures.foreign import Sign, sign_of_class

OURS: Mapping[type[BaseException], Sign] = {
    errors.DrayError: Sign.OTHER,
    errors.RefusedError: Sign.REFUSED,
    errors.InputError: Sign.REFUSED,
    errors.ConfigError: Sign.REFUSED,
    errors.WeightsError: Sign.REFUSED,
    errors.JobChangedError: Sign.REFUSED,
    errors.JobBusyError: Sign.REFUSED,
    errors.UnknownJobError: Sign.REFUSED,
    errors.StoreError: Sign.STORE_BROKEN,
    errors.StoreUnreachableError: Sign.STORE_AWAY,  # it was there when the job was opened
    errors.NoStoreError: Sign.STORE_AWAY,
    errors.StoreTransientError: Sign.STORE_AWAY,
    errors.NoConnectionError: Sign.STORE_AWAY,  # a shard task without a lease ends instead: shard/task.py
    errors.StoreFatalError: Sign.STORE_BROKEN,
    errors.StoreRefusedError: Sign.STORE_BROKEN,  # a password that was changed: no wait mends that
    errors.ValueTooLargeError: Sign.STORE_BROKEN,
    errors.FencedError: Sign.FENCED,
    errors.LeaseLapsedError: Sign.STORE_AWAY,
    errors.EngineError: Sign.OTHER,
    errors.RequestRefused: Sign.OF_A_REQUEST,
    errors.EngineDeadError: Sign.ENGINE_DEAD,
    errors.EngineStartError: Sign.ENGINE_START,
    errors.NotImportedError: Sign.NOT_IMPORTED,
    errors.ReplicaLostError: Sign.LOST,
    errors.ReplicaLeftError: Sign.LOST,
    errors.NoRoomError: Sign.NO_ROOM,
    errors.InterruptedShardError: Sign.OTHER,  # made of a decision, and never decided about
    errors.ClusterError: Sign.ENDED,  # without its head there is nothing to try again on: resume the job
    errors.JobFailedError: Sign.ENDED,
    errors.JobPausedError: Sign.ENDED,
    errors.JobBlockedError: Sign.ENDED,
    errors.ExpiredError: Sign.OTHER,  # the circumstances say so
    errors.CancelledError: Sign.CANCELLED,
}

_RAN_INSIDE = "ray.exceptions.RayTaskError"
_NO_CACHE = "No available memory for the cache blocks"  # of vLLM's ValueError (v1/core/kv_cache_utils.py)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFacts:
    """An error without its text, which may quote what it must not.

    ``oom``, ``preempted`` and ``stuck`` are what the reporter of the loss knew: Ray, the pool or the replica.
    """

    sign: Sign
    name: str
    oom: bool
    preempted: bool
    stuck: bool


def facts_of(error: BaseException) -> ErrorFacts:
    """What ``error`` says. It may carry ``oom`` and ``preempted`` as attributes, as Ray's errors do."""
    inside = _is_named(error, _RAN_INSIDE)
    cause = _attribute(error, "cause") if inside else None
    if inside and isinstance(cause, errors.DrayError):
        return facts_of(cause)
    sign = _sign(error)
    if inside:  # foreign to the engine: it is dead, unless Ray only had no room for its answers
        carried = sign_of_class(type(cause)) if isinstance(cause, BaseException) else None
        sign = carried if carried in (Sign.OOM, Sign.NO_ROOM) else Sign.ENGINE_DEAD
    return ErrorFacts(
        sign=sign,
        name=_name(error),
        oom=_attribute(error, "oom") is True,
        preempted=_attribute(error, "preempted") is True,
        stuck=_attribute(error, "stuck") is True,
    )


def _name(error: BaseException) -> str:
    if isinstance(error, errors.StoreError):  # its words follow
        return ""
    if isinstance(error, errors.NoRoomError):  # it names the node or the replica, and quotes nothing
        return str(error)
    if isinstance(error, errors.NotImportedError):  # Python's words name modules, and quote no row
        return f"{error.where}: {error.why}"
    return type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was what ``error``, or what it was raised from, lacked."""
    seen: BaseException | None = error
    while seen is not None:
        known = facts_of(seen).oom or _sign(seen) is Sign.OOM
        if known or _lacked_by_a_rank(seen) or _lacked_for_the_cache(seen):
            return True
        seen = seen.__cause__
    return False


def death_by(error: BaseException) -> errors.EngineDeadError:
    """What ends the sessions of an engine that ``error`` ended."""
    known = isinstance(error, errors.EngineDeadError)
    message = str(error) if known else f"the engine died ({type(error).__name__})"
    return errors.EngineDeadError(message, oom=out_of_memory(error))


def _lacked_by_a_rank(error: BaseException) -> bool:
    """vLLM's ranks beside the first report their errors only as text (v1/executor/multiproc_executor.py)."""
    return (
        isinstance(error, RuntimeError)
        and str(error).startswith("Worker failed with error")
        and "out of memory" in str(error)
    )


def _lacked_for_the_cache(error: BaseException) -> bool:
    """A starting vLLM seldom runs out of memory: weights and a full step leave its cache none."""
    return isinstance(error, ValueError) and str(error).startswith(_NO_CACHE)


def _sign(error: BaseException) -> Sign:
    for base in type(error).__mro__:
        if base in OURS:
            return OURS[base]
    foreign = sign_of_class(type(error))
    if foreign is not None:
        return foreign
    return _of_system(error) if isinstance(error, OSError) else Sign.OTHER


def _of_system(error: OSError) -> Sign:
    """Files and object stores: ``storage/faults.py`` turns all of the latter's errors into these."""
    if error.errno in _FULL or isinstance(error, FileNotFoundError | PermissionError):
        return Sign.STORE_BROKEN
    # Object stores give no number: what is neither missing nor forbidden was busy, or out of reach.
    if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
        return Sign.STORE_AWAY
    return Sign.OTHER


def _attribute(error: BaseException, name: str) -> object:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001  a property of a class that dray does not know
        return None


def _is_named(error: BaseException, name: str) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == name for base in type(error).__mro__)
