"""The one place of dray that knows the Prefect side: the command line is a caller of the flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError
from dray.imports import lasting_imports

if TYPE_CHECKING:
    from pydantic import ValidationError

_OPTIONS = {"extra": "param", "name": "engine", "arguments": "engine-arg"}  # where a form says otherwise


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


def check_forms(parameters: Mapping[str, Any]) -> None:
    """What the flow's forms refuse; Prefect would say so when it and Ray have started.

    Raises:
        ConfigError: names the option.
    """
    try:
        with lasting_imports():
            from pydantic import ValidationError

            from flows.parameters import (  # noqa: TID251  see above
                EngineOptions,
                RowOptions,
                SamplingOptions,
                seconds_of,
            )
    except ModuleNotFoundError:
        return  # `the_flow` reports that the flows are missing
    try:
        RowOptions(**parameters["rows"])
        SamplingOptions(**parameters["sampling"])
        EngineOptions(**parameters["engine"])
    except ValidationError as error:
        raise ConfigError(_told(error)) from None
    seconds_of(parameters.get("completion_window"))


def _told(error: ValidationError) -> str:
    found = []
    for problem in error.errors(include_url=False):
        field = str(problem["loc"][0])
        given = f" {problem['input']}" if isinstance(problem["input"], int | float) else ""
        found.append(f"--{_OPTIONS.get(field, field.replace('_', '-'))}{given}: {problem['msg']}")
    return "; ".join(found)
