"""Refuse the obvious before Prefect and Ray take their seconds to start.

The job checks all of this again, with everything that only the flow can resolve (blocks).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dray.cli.flow import check_forms
from dray.cli.output import printable
from dray.errors import ConfigError
from dray.requests.addresses import refuse_secret
from dray.requests.objects import is_object

if TYPE_CHECKING:
    from dray.requests import Source

_SHAPE = (
    "prompt_column", "template", "messages_column", "system_prompt", "id_column", "query", "delimiter",
)  # fmt: skip
_PATIENCE = 3.0  # seconds for a store that does not answer: the job itself is more patient


def refuse_early(parameters: Mapping[str, Any]) -> None:
    """Look at what the flow's parameters name.

    Raises:
        ConfigError, InputError, StoreUnreachableError: it cannot be used.
    """
    _check_texts(parameters)
    for name in ("model", "output"):
        refuse_secret(parameters[name])
    check_forms(parameters)
    _check_engine(parameters["engine"], parameters["model"], objects_known=parameters["objects"] is None)
    _check_settings(parameters, _check_input(parameters))
    _check_output(parameters)
    _check_store(parameters)


def _check_texts(parameters: Mapping[str, Any]) -> None:
    """Neither Prefect nor a store keeps a text that is not UTF-8."""
    for name, value in parameters.items():
        for text in value if isinstance(value, list) else [value]:
            if printable(text) != text:
                which = f" ({printable(text)})" if isinstance(text, str) else ""
                raise ConfigError(f"{name}{which} is not valid UTF-8; give a file a name that is")


def _check_settings(parameters: Mapping[str, Any], source: Source) -> None:
    from dray.job.settings import JobSettings
    from dray.requests import RowDefaults

    engine = parameters["engine"]
    JobSettings(
        source=source,
        defaults=RowDefaults(),
        model=parameters["model"],
        output=parameters["output"],
        store_url="",
        engine=engine["name"],
        replicas=engine["replicas"],
        job_id=parameters["job_id"],
    )


def _check_engine(engine: Mapping[str, Any], model: str, *, objects_known: bool) -> None:
    arguments = dict(engine["arguments"])
    if engine["name"] == "simulated":
        from dray.engine.simulated import SimulatedSettings

        SimulatedSettings.parse(arguments)
        return
    from dray.engine.unsafe import refuse_unsafe
    from dray.job.model_files import checked_weights

    refuse_unsafe(arguments)
    if objects_known or not is_object(model):
        checked_weights(model, None, dummy_weights=arguments.get("load_format") == "dummy")


def _check_input(parameters: Mapping[str, Any]) -> Source:
    from dray.requests import Kind, expand, settled, source_of

    given = parameters["input"]
    inputs = [given] if isinstance(given, str) else list(given)
    rows = parameters["rows"]
    source = source_of(inputs, kind=Kind(rows["kind"]), **{name: rows.get(name) for name in _SHAPE})
    if rows["query"] is not None:
        return source
    if parameters["objects"] is None or not any(map(is_object, inputs)):
        expand(inputs)
        settled(source)
    elif local := [item for item in inputs if not is_object(item)]:
        expand(local)
    return source


def _check_output(parameters: Mapping[str, Any]) -> None:
    from dray.requests import check_writable

    if parameters["objects"] is None or not is_object(parameters["output"]):
        check_writable(parameters["output"])


def _check_store(parameters: Mapping[str, Any]) -> None:
    from dray.store import open_store

    store: str | None = parameters["store"]
    if store is None or store.startswith("block:"):
        return
    if store.startswith("env:"):
        name = store.removeprefix("env:")
        store = os.environ.get(name)
        if not store:
            raise ConfigError(f"environment variable {name} is not set")
    open_store(store, patience=_PATIENCE).close()
