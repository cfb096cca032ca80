"""The one place of dray that knows the Prefect side: the command line is a caller of the flow."""

from __future__ import annotations

from typing import Any

from dray.errors import ConfigError
from dray.imports import lasting_imports


def the_flow() -> tuple[Any, Any]:
    """The flow, and what flushes Prefect's queues after it.

    Raises:
        ConfigError: this is not a checkout of the project.
    """
    try:
        with lasting_imports():
            from flows.batch_inference import batch_inference, flush_prefect  # noqa: TID251  see above
    except ModuleNotFoundError as error:
        if error.name not in ("flows", "tasks", "blocks"):
            raise
        raise ConfigError(
            "the flows are not importable: `dray run` needs the project's checkout (pip install -e .), "
            "because the wheel holds the library alone"
        ) from None
    return batch_inference, flush_prefect
