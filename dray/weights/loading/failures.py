"""Why a rank could not load its weights, for the process that started it.

vLLM itself says there only that some worker failed. All processes of an engine inherit the variable.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dray.errors import EngineStartError, WeightsError
from dray.failures.signs import out_of_memory

_VARIABLE = "DRAY_LOAD_FAILURES"
_NO_MEMORY = "memory did not suffice for the weights"


@contextmanager
def ranks_heard() -> Iterator[None]:
    """Around the start of an engine: raises what a rank raised, in place of what vLLM makes of it.

    Raises:
        WeightsError: as one of the ranks said it.
        EngineStartError: one of them lacked memory.
    """
    with tempfile.TemporaryDirectory(prefix="dray-load-") as folder:
        os.environ[_VARIABLE] = folder
        try:
            yield
        except Exception as error:
            said = [text for file in Path(folder).iterdir() if (text := file.read_text())]
            if isinstance(error, WeightsError) or not said:
                raise
            if _NO_MEMORY in said:
                raise EngineStartError(_NO_MEMORY, oom=True) from error
            raise WeightsError(said[0]) from error
        finally:
            os.environ.pop(_VARIABLE, None)


@contextmanager
def told() -> Iterator[None]:
    """Around a load: reports what it raises to the process that waits in :func:`ranks_heard`, if one does."""
    try:
        yield
    except WeightsError as error:
        _tell(str(error))
        raise
    except Exception as error:
        if out_of_memory(error):
            _tell(_NO_MEMORY)
        raise


def _tell(text: str) -> None:
    if folder := os.environ.get(_VARIABLE):
        with suppress(OSError):
            (Path(folder) / str(os.getpid())).write_text(text)
