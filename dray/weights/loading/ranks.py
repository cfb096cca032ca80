"""What an engine's ranks say of their loads, and why they failed, for the process that started them.

vLLM itself says there only that some worker failed, or nothing at all. All processes of an engine inherit the
variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.errors import EngineDeadError, EngineStartError, WeightsError
from dray.failures.signs import out_of_memory
from dray.temporary import TemporaryFolder

_VARIABLE = "DRAY_LOAD_REPORTS"
_NO_MEMORY = "memory did not suffice for the weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """Seconds that a rank's load took; ``waited`` of them, bytes had not arrived yet."""

    seconds: float
    waited: float


@dataclass(slots=True)
class Ranks:
    """What the ranks of one engine said: ``loads`` is there once the engine is built."""

    loads: list[LoadTimes] = field(default_factory=list)
    folder: TemporaryFolder | None = None  # where they say it, as long as the engine lives

    def death(self) -> EngineDeadError | None:
        """Why the first of them failed, if one did since the engine was built."""
        said = None if self.folder is None else _first_failure(self.folder.path)
        return None if said is None else EngineDeadError(**said)

    def close(self) -> None:
        """The engine has ended: what they said goes."""
        if self.folder is not None:
            self.folder.remove()


@contextmanager
def ranks_heard() -> Iterator[Ranks]:
    """Around the start of an engine: gathers its loads' times, or raises what a rank raised.

    Raises:
        WeightsError: as one of the ranks said it.
        EngineStartError: one of them lacked memory, or failed otherwise, and says why.
    """
    folder = TemporaryFolder("dray-load-")
    ranks = Ranks(folder=folder)
    os.environ[_VARIABLE] = str(folder.path)
    try:
        yield ranks
        ranks.loads = [LoadTimes(**json.loads(file.read_text())) for file in folder.path.glob("*.json")]
    except Exception as error:
        said = [file.read_text() for file in folder.path.glob("*.txt")]
        failure = _first_failure(folder.path)
        ranks.close()
        if isinstance(error, WeightsError):
            raise
        if _NO_MEMORY in said:
            raise EngineStartError(_NO_MEMORY, oom=True) from error
        if said:
            raise WeightsError(said[0]) from error
        if failure is not None:
            raise EngineStartError(**failure) from error
        raise
    finally:
        os.environ.pop(_VARIABLE, None)


def _first_failure(folder: Path) -> dict[str, Any] | None:
    """What the first rank that failed said: others fail when they miss it."""
    files = sorted(folder.glob("*.failure"), key=lambda file: file.stat().st_mtime_ns)
    return json.loads(files[0].read_text()) if files else None


@contextmanager
def told() -> Iterator[None]:
    """Around a load: reports what it raises to the process that waits in :func:`ranks_heard`, if one does."""
    try:
        yield
    except WeightsError as error:
        _tell("txt", str(error))
        raise
    except Exception as error:
        if out_of_memory(error):
            _tell("txt", _NO_MEMORY)
        raise


def tell_times(seconds: float, waited: float) -> None:
    """Report a load that is done to the process that waits in :func:`ranks_heard`, if one does."""
    _tell("json", json.dumps({"seconds": seconds, "waited": waited}))


def tell_failure(message: str, *, oom: bool) -> None:
    """Report why this rank does not start, or failed in a step, to the process that started it.

    Its first failure counts: a second one comes of it.
    """
    _tell("failure", json.dumps({"message": message, "oom": oom}))


def _tell(kind: str, text: str) -> None:
    """Where a process of dray's started this one. The file is whole once it has its name."""
    if folder := os.environ.get(_VARIABLE):
        path = Path(folder) / f"{os.getpid()}.{kind}"
        written = path.with_suffix(f".{kind}~")
        with suppress(OSError):
            written.write_text(text)
            if not path.exists():
                written.rename(path)
