"""Every exception class of the libraries behind a seam is known: a new one fails here, not in a job."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from dray import errors
from dray.engine.ray_errors import ray_errors
from dray.errors import DrayError, StoreError, StoreFatalError, StoreTransientError
from dray.failures.foreign import FOREIGN, Sign, sign_of_class
from dray.failures.signs import OURS, facts_of

pytestmark = pytest.mark.unit

NEVER = {  # a class, or a part of a library: why none of it reaches a decision
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


def exceptions(module: ModuleType) -> list[type[BaseException]]:
    """The exception classes that a module defines, warnings among them."""
    found = vars(module).values()
    return [one for one in found if inspect.isclass(one) and issubclass(one, BaseException)]


def made(kind: type[BaseException]) -> BaseException:
    """An instance without its constructor's arguments, whatever they are."""
    error = kind.__new__(kind)
    error.args = ("a prompt",)
    return error


def never(name: str) -> bool:
    return any(name == part or (part.endswith(".") and name.startswith(part)) for part in NEVER)


# -- dray's own -----------------------------------------------------------------------------


def test_every_error_of_drays_own_is_named() -> None:
    assert set(OURS) == {one for one in exceptions(errors) if issubclass(one, DrayError)}


# -- Ray ------------------------------------------------------------------------------------

# Where the seam does otherwise than the table says: what it makes of it, None where it lets it through. The
# comparison is exact, so that an entry goes when the seam is changed.
SEAM_GAPS = {
    "OutOfMemoryError": Sign.LOST,  # marked as memory's doing
}


def ray_exceptions() -> list[type[BaseException]]:
    return exceptions(importlib.import_module("ray.exceptions"))


def test_every_exception_of_ray_is_known() -> None:
    names = {f"{one.__module__}.{one.__qualname__}" for one in ray_exceptions()}
    known = {name for name in {*FOREIGN, *NEVER} if name.startswith("ray.")}
    assert names - known == set(), "new in Ray: name them in dray/failures/foreign.py"
    assert known - names == set(), "gone from Ray"
    assert not set(FOREIGN) & set(NEVER)


def test_the_seam_to_ray_agrees_with_the_table() -> None:
    for kind in ray_exceptions():
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name not in FOREIGN or kind.__name__ == "RayTaskError":
            continue
        seen: Sign | None = None
        try:
            with ray_errors("r0"):
                raise made(kind)
        except DrayError as error:
            seen = facts_of(error).sign
            assert "prompt" not in str(error)
        except BaseException as error:  # noqa: BLE001  it went through as it was
            assert type(error) is kind
            assert facts_of(error).sign is FOREIGN[name]  # and is understood all the same
        assert seen is SEAM_GAPS.get(kind.__name__, FOREIGN[name]), name


def test_what_a_task_error_carries_counts() -> None:
    from ray.exceptions import OutOfDiskError, RayTaskError

    def carried(cause: Exception) -> Sign:
        plain = RayTaskError("results", "trace", cause)
        assert facts_of(plain) == facts_of(plain.as_instanceof_cause()) or not isinstance(cause, DrayError)
        return facts_of(plain.as_instanceof_cause()).sign

    assert carried(ValueError("x")) is Sign.ENGINE_DEAD
    assert carried(MemoryError()) is Sign.OOM
    assert carried(OutOfDiskError()) is Sign.NO_ROOM
    assert carried(OSError("x")) is Sign.ENGINE_DEAD  # of the replica's node, and not of the store
    assert carried(errors.EngineStartError("x")) is Sign.ENGINE_START
    assert carried(errors.RequestRefused("invalid_request", "x")) is Sign.OF_A_REQUEST


def test_rays_word_for_a_preemption_is_heard() -> None:
    from ray.exceptions import RayActorError

    assert facts_of(RayActorError(preempted=True)).preempted
    assert not facts_of(RayActorError()).preempted


# -- vLLM: read and not imported, which takes seconds ---------------------------------------

_CLASS = re.compile(r"^class (\w+)\([^)]*(?:Error|Exception|Interrupt)\b[^)]*\)", re.MULTILINE)


def vllm_folder() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def vllm_exceptions() -> set[str]:
    folder = vllm_folder()
    found = set()
    for file in folder.rglob("*.py"):
        text = file.read_text(errors="replace")
        if "class " not in text or ("Error" not in text and "Exception" not in text):
            continue
        module = ".".join(("vllm", *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        found |= {f"{module}.{name}" for name in _CLASS.findall(text) if not name.startswith("_")}
    return found


def test_every_exception_of_vllm_is_known() -> None:
    names = vllm_exceptions()
    assert "vllm.exceptions.VLLMValidationError" in names  # the search finds something
    unknown = {name for name in names if name not in FOREIGN and not never(name)}
    assert unknown == set(), "new in vLLM: name them in dray/failures/foreign.py"
    assert {name for name in FOREIGN if name.startswith("vllm.")} - names == set(), "gone from vLLM"
    gone = {part for part in NEVER if part.startswith("vllm.") and not any(n.startswith(part) for n in names)}
    assert gone == set(), "gone from vLLM"


def test_torchs_own_words_are_known() -> None:
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    if torch is None:
        pytest.skip("torch is not installed")
    assert sign_of_class(torch.OutOfMemoryError) is Sign.OOM
    assert sign_of_class(torch.cuda.OutOfMemoryError) is Sign.OOM
    assert sign_of_class(torch.AcceleratorError) is Sign.ENGINE_DEAD


# -- SQLAlchemy -----------------------------------------------------------------------------

FROM_THE_DRIVER = {  # wrapped around the driver's own, whose code decides
    "DBAPIError", "DataError", "DatabaseError", "IntegrityError", "InterfaceError", "InternalError",
    "NotSupportedError", "OperationalError", "ProgrammingError",
}  # fmt: skip
POOL = {"TimeoutError"}
OUR_FAULT = {  # wrong use of SQLAlchemy, or of its results
    "AmbiguousForeignKeysError", "ArgumentError", "AwaitRequired",
    "CircularDependencyError", "CompileError", "ConstraintColumnNotFoundError", "DuplicateColumnError",
    "IdentifierError", "IllegalStateChangeError", "InvalidRequestError", "MissingGreenlet",
    "MultipleResultsFound", "NoForeignKeysError", "NoInspectionAvailable",
    "NoReferenceError", "NoReferencedColumnError", "NoReferencedTableError", "NoResultFound",
    "NoSuchColumnError", "NoSuchModuleError", "NoSuchTableError", "ObjectNotExecutableError",
    "PendingRollbackError", "ResourceClosedError", "SQLAlchemyError", "StatementError",
    "UnboundExecutionError", "UnreflectableTableError", "UnsupportedCompilationError",
}  # fmt: skip
NEVER_SQL = {
    "Base20DeprecationWarning": "a warning",
    "LegacyAPIWarning": "a warning",
    "MovedIn20Warning": "a warning",
    "SADeprecationWarning": "a warning",
    "SAPendingDeprecationWarning": "a warning",
    "SATestSuiteWarning": "a warning",
    "SAWarning": "a warning",
    "DisconnectionError": "raised by handlers of pool events and caught by the pool",
    "InvalidatePoolError": "raised by handlers of pool events and caught by the pool",
}


def test_every_exception_of_sqlalchemy_is_known_and_translated() -> None:
    from dray.store.database.seam import translate

    module = importlib.import_module("sqlalchemy.exc")
    kinds = {one.__name__: one for one in exceptions(module) if one.__module__ == module.__name__}
    listed = FROM_THE_DRIVER | POOL | OUR_FAULT | set(NEVER_SQL)
    assert set(kinds) - listed == set(), "new in SQLAlchemy: say what it means in dray/store/database/seam.py"
    assert listed - set(kinds) == set(), "gone from SQLAlchemy"
    for name in listed - set(NEVER_SQL):
        error = made(kinds[name])
        assert isinstance(error, Exception)
        if name in FROM_THE_DRIVER:
            vars(error).update(orig=None, connection_invalidated=True)
        found: StoreError = translate(error, "postgresql://")
        lost = name in FROM_THE_DRIVER | POOL
        assert type(found) is (StoreTransientError if lost else StoreFatalError), name
        assert facts_of(found).sign is (Sign.STORE_AWAY if lost else Sign.STORE_BROKEN)
        assert "prompt" not in str(found)


# -- obstore --------------------------------------------------------------------------------

OBJECTS = {
    "BaseError": Sign.STORE_AWAY,
    "GenericError": Sign.STORE_AWAY,  # answers of 5xx, time-outs, lost connections, after its own retries
    "JoinError": Sign.STORE_AWAY,
    "NotFoundError": Sign.STORE_BROKEN,
    "PermissionDeniedError": Sign.STORE_BROKEN,
    "UnauthenticatedError": Sign.STORE_BROKEN,
}
# Errors that no retry can help, which the seam makes plain OSErrors as it does those that one may: they end
# when the store's patience does.
OBJECTS_FOR_NOTHING = {
    "AlreadyExistsError": "objects are overwritten",
    "InvalidPathError": "paths were listed, or checked at the start",
    "NotModifiedError": "no request asks for changes only",
    "NotSupportedError": "checked at the start: the output's folder is written to",
    "PreconditionError": "an object was replaced: its own error in the seam",
    "UnknownConfigurationKeyError": "raised when a store is opened, at the start",
}


def test_every_exception_of_obstore_is_known_and_translated() -> None:
    from dray.storage.faults import translated

    module = importlib.import_module("obstore.exceptions")
    kinds = {one.__name__: one for one in exceptions(module)}
    listed = set(OBJECTS) | set(OBJECTS_FOR_NOTHING)
    assert set(kinds) - listed == set(), "new in obstore: say what it means in dray/storage/faults.py"
    assert listed - set(kinds) == set(), "gone from obstore"
    for name, kind in kinds.items():
        with pytest.raises(OSError) as caught, translated("s3://bucket/key"):
            raise kind("503 Service Unavailable\nhttps://bucket/key?X-Amz-Signature=secret")
        assert facts_of(caught.value).sign is OBJECTS.get(name, Sign.STORE_AWAY), name
        assert "secret" not in str(caught.value)
