"""What the exception classes of Ray, vLLM and torch say, by their full names: importing them is not needed.

A class stands for its subclasses too, unless they are named themselves. Tests read this table against the
installed libraries: a class that one of them gains is named here, or in a test among those that never come.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Sign(StrEnum):
    """What an error says by itself, before anything is known of its circumstances."""

    FENCED = "fenced"
    """The lease belongs to another holder."""
    OF_A_REQUEST = "of a request"
    """One request's own: the engine makes an error row of it, and it ends no attempt."""
    REFUSED = "refused"
    """The job cannot be done as it is."""
    LOST = "lost"
    """A process or a node went away, or out of reach."""
    ENGINE_DEAD = "engine dead"
    """The engine's process cannot go on."""
    ENGINE_START = "engine start"
    """The engine never became ready."""
    NOT_IMPORTED = "not imported"
    """A node cannot import what the driver has."""
    OOM = "out of memory"
    """Memory did not suffice, the device's or the machine's."""
    NO_ROOM = "no room"
    """Ray's object store on a node is full, and so is the disk behind it."""
    STORE_AWAY = "store away"
    """A store of rows or objects may work when it is tried again."""
    STORE_BROKEN = "store broken"
    """It will not until an operator acts."""
    CANCELLED = "cancelled"
    """A user or a signal ended it."""
    ENDED = "ended"
    """Who raised this has decided that the run is over."""
    OTHER = "other"
    """Nothing that is known."""


FOREIGN: Mapping[str, Sign] = {
    # Ray. RayTaskError is looked into: what it carries counts.
    "ray.exceptions.RayError": Sign.OTHER,
    "ray.exceptions.RayTaskError": Sign.ENGINE_DEAD,
    "ray.exceptions.RayActorError": Sign.LOST,
    "ray.exceptions.ActorDiedError": Sign.LOST,
    "ray.exceptions.ActorUnavailableError": Sign.LOST,
    "ray.exceptions.ActorUnschedulableError": Sign.LOST,
    "ray.exceptions.ActorPlacementGroupRemoved": Sign.LOST,
    "ray.exceptions.TaskUnschedulableError": Sign.LOST,
    "ray.exceptions.TaskPlacementGroupRemoved": Sign.LOST,
    "ray.exceptions.NodeDiedError": Sign.LOST,
    "ray.exceptions.LocalRayletDiedError": Sign.LOST,
    "ray.exceptions.WorkerCrashedError": Sign.LOST,
    "ray.exceptions.OwnerDiedError": Sign.LOST,
    "ray.exceptions.ObjectLostError": Sign.LOST,
    "ray.exceptions.ObjectFetchTimedOutError": Sign.LOST,
    "ray.exceptions.ObjectReconstructionFailedError": Sign.LOST,
    "ray.exceptions.ReferenceCountingAssertionError": Sign.LOST,
    "ray.exceptions.ObjectFreedError": Sign.LOST,
    "ray.exceptions.RaySystemError": Sign.LOST,
    "ray.exceptions.RpcError": Sign.LOST,
    "ray.exceptions.GetTimeoutError": Sign.LOST,  # unavailable past a timeout
    "ray.exceptions.OutOfMemoryError": Sign.OOM,
    "ray.exceptions.TaskCancelledError": Sign.CANCELLED,
    "ray.exceptions.AuthenticationError": Sign.REFUSED,
    "ray.exceptions.RuntimeEnvSetupError": Sign.OTHER,
    "ray.exceptions.ObjectStoreFullError": Sign.NO_ROOM,
    "ray.exceptions.OutOfDiskError": Sign.NO_ROOM,
    # vLLM, inside the replica's process.
    "vllm.exceptions.VLLMError": Sign.OTHER,
    "vllm.exceptions.VLLMClientError": Sign.OF_A_REQUEST,
    "vllm.exceptions.VLLMValidationError": Sign.OF_A_REQUEST,
    "vllm.exceptions.VLLMNotFoundError": Sign.OF_A_REQUEST,
    "vllm.exceptions.VLLMUnprocessableEntityError": Sign.OF_A_REQUEST,
    "vllm.exceptions.VLLMServerError": Sign.ENGINE_DEAD,
    "vllm.exceptions.GenerationError": Sign.OF_A_REQUEST,
    "vllm.exceptions.RetryableRequestError": Sign.OF_A_REQUEST,
    "vllm.v1.engine.exceptions.EngineGenerateError": Sign.OF_A_REQUEST,
    "vllm.v1.engine.exceptions.EngineDeadError": Sign.ENGINE_DEAD,
    "vllm.connections.HTTPResponseSizeExceededError": Sign.OF_A_REQUEST,
    "vllm.renderers.chat_utils.ChatTemplateResolutionError": Sign.OF_A_REQUEST,
    "vllm.tool_parsers.utils.UnexpectedAstError": Sign.OF_A_REQUEST,
    # What the engine's own libraries raise when memory or the device fails.
    "torch.OutOfMemoryError": Sign.OOM,
    "torch.AcceleratorError": Sign.ENGINE_DEAD,
    "builtins.MemoryError": Sign.OOM,
    # Python's own words for an end.
    "builtins.KeyboardInterrupt": Sign.CANCELLED,
    "asyncio.exceptions.CancelledError": Sign.CANCELLED,
}


def sign_of_class(found: type[BaseException]) -> Sign | None:
    """What the nearest named class among a class and its bases says; None where none is named."""
    for base in found.__mro__:
        sign = FOREIGN.get(f"{base.__module__}.{base.__qualname__}")
        if sign is not None:
            return sign
    return None
