"""What the exception classes of Ray, vLLM and torch say, by their full names: importing them is not needed.

A class stands for its subclasses too, unless they are named themselves. Tests read this table against the
installed libraries: a class that one of them gains is either named here, or among those that never come.
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
    OOM = "out of memory"
    """Memory did not suffice, the device's or the machine's."""
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
    "ray.exceptions.ObjectStoreFullError": Sign.OTHER,
    "ray.exceptions.OutOfDiskError": Sign.OTHER,
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

NEVER: Mapping[str, str] = {  # a class, or a part of a library: why none of it reaches a decision
    "ray.exceptions.ActorAlreadyExistsError": "the pool waits until the name is free",
    "ray.exceptions.ActorHandleNotFoundError": "handles are never kept beyond their session",
    "ray.exceptions.AsyncioActorExit": "no actor is asynchronous",
    "ray.exceptions.CrossLanguageError": "all is Python",
    "ray.exceptions.ObjectRefStreamEndOfStreamError": "the generator turns it into StopIteration",
    "ray.exceptions.OufOfBandObjectRefSerializationException": "references are passed as arguments only",
    "ray.exceptions.PendingCallsLimitExceeded": "max_pending_calls is not set",
    "ray.exceptions.PlasmaObjectNotAvailable": "Ray itself handles it",
    "ray.exceptions.RayCgraphCapacityExceeded": "no compiled graphs",
    "ray.exceptions.RayChannelError": "no compiled graphs",
    "ray.exceptions.RayChannelTimeoutError": "no compiled graphs",
    "ray.exceptions.RayDirectTransportError": "no direct transport",
    "ray.exceptions.StreamingGeneratorReplayInconsistentError": "no call is replayed: max_task_retries is 0",
    "ray.exceptions.UnserializableException": "it stands inside a RayTaskError, which is looked into",
    "ray.exceptions.UserCodeException": "a name for users' code to raise; dray does not",
    "vllm.exceptions.LoRAAdapterNotFoundError": "adapters are loaded at the start, as ConfigError says",
    "vllm.exceptions.GracefulHTTPError": "of the HTTP server",
    "vllm.exceptions.QueueOverflowError": "of the HTTP server",
    "vllm.exceptions.MaxQueuedTokensError": "of the HTTP server",
    "vllm.exceptions.ProfilerAlreadyActiveError": "of the HTTP server",
    "vllm.v1.engine.async_llm.InputStreamError": "of the asynchronous engine",
    "vllm.v1.metrics.": "statistics",
    "vllm.entrypoints.generate.structured_decisions.": "an endpoint that is not offered",
    "vllm.connections.MediaDownloadSizeExceededError": "rows make vLLM fetch nothing",
    "vllm.multimodal.": "raised while a row is read, and front and core share no list of images",
    "vllm.model_executor.model_loader.weight_cache.": "weights are loaded by dray's own loader",
    "vllm.models.": "raised and handled within a model",
    "vllm.compilation.": "raised and handled within the compiler",
    "vllm.snapshot.": "snapshots are not used",
    "vllm.distributed.": "no transfers between engines",
    "vllm.third_party.": "vendored",
}


def sign_of_class(found: type[BaseException]) -> Sign | None:
    """What the nearest named class among a class and its bases says; None where none is named."""
    for base in found.__mro__:
        sign = FOREIGN.get(f"{base.__module__}.{base.__qualname__}")
        if sign is not None:
            return sign
    return None
