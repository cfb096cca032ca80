"""Refuse the obvious before Prefect and Ray take their seconds to start.

The job checks all of this again, with everything that only the flow can resolve (blocks).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dray.cli.flow import check_forms
from dray.cli.output import printable
from dray.errors import ConfigError, InputError, Problem
from dray.storage.addresses import refuse_secret
from dray.storage.files import local_path
from dray.storage.objects import is_object

if TYPE_CHECKING:
    from dray.requests import Source

_SHAPE = (
    "prompt_column", "template", "messages_column", "system_prompt", "id_column", "query", "delimiter",
)  # fmt: skip
_SMALL_BYTES = 2 << 20  # of input: a few thousand rows, which take a tenth of a second
_ROWS_SECONDS = 0.2  # of reading rows where nothing is wrong with them
_MORE_SECONDS = 3.0  # where something is: the more is named, the fewer runs it takes
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
    _check_engine(parameters)
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


def _check_engine(parameters: Mapping[str, Any]) -> None:
    model, arguments = parameters["model"], dict(parameters["engine"]["arguments"])
    if parameters["engine"]["name"] == "simulated":
        from dray.engine.simulated import SimulatedSettings
        from dray.job.model_files import refuse_typo

        SimulatedSettings.parse(arguments)
        if not parameters.get("resume"):  # a word for the model was made a path where the job began
            refuse_typo(model)
        return
    from dray.engine.argument_policy import refuse_unsafe
    from dray.engine.declared import refuse_arguments
    from dray.job.model_files import checked_weights, refuse_misfit

    refuse_unsafe(arguments)
    if parameters["cluster"] == "local":  # other clusters have a vLLM of their own
        refuse_arguments(arguments)
    if parameters["objects"] is None or not is_object(model):
        checked_weights(model, None, dummy_weights=arguments.get("load_format") == "dummy")
        refuse_misfit(model, arguments)


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
        found, _ = settled(source)
        if not any(map(is_object, inputs)):
            _check_rows(found, rows)
    elif local := [item for item in inputs if not is_object(item)]:
        expand(local)
    return source


def _check_rows(source: Source, rows: Mapping[str, Any]) -> None:
    """Take a small input in as ingest does, only to judge it; of a big one look at the first rows.

    The seconds that Ray and Prefect take to start come after this.

    Raises:
        InputError: the files cannot be read, or rows cannot be requests.
    """
    from dray.requests import RowDefaults, ingest
    from dray.requests.readers import files_of

    if sum(Path(local_path(file.uri)).stat().st_size for file in files_of(source)) > _SMALL_BYTES:
        _check_first_rows(source, rows["skip_invalid"])
        return
    with TemporaryDirectory(prefix="dray-early-") as folder:
        ingest(
            source,
            spool_uri=f"{folder}/requests.jsonl",
            defaults=RowDefaults(model_name=rows.get("model_name")),
            skip_invalid=rows["skip_invalid"],
        )


def _check_first_rows(source: Source, skip_invalid: bool) -> None:
    """Read files as ingest will, for a moment: most problems are in the first rows. Tells up to 20 of them.

    Raises:
        InputError: the files cannot be read, or rows cannot be requests.
    """
    from dray.requests import Limits, RowDefaults
    from dray.requests.readers import files_of, read_rows
    from dray.requests.rejects import SKIP_ADVICE, Reject

    limits, files = Limits(), files_of(source)
    names = [file.uri for file in files]
    began = time.monotonic()
    problems: list[Problem] = []
    for index, row in enumerate(read_rows(source, files, RowDefaults(), limits)):
        if row.bad is not None and not skip_invalid:
            reject = Reject.of(row.bad, index=index, file_no=row.file_no, line_no=row.line_no)
            problems.append(reject.problem(names))
        seconds = time.monotonic() - began
        if len(problems) == limits.problems or seconds > (_MORE_SECONDS if problems else _ROWS_SECONDS):
            break
    if problems:
        raise InputError(problems, advice=SKIP_ADVICE)


def _check_output(parameters: Mapping[str, Any]) -> None:
    from dray.storage import check_writable

    if parameters["objects"] is None or not is_object(parameters["output"]):
        check_writable(parameters["output"])


def _check_store(parameters: Mapping[str, Any]) -> None:
    from dray.store import open_store
    from dray.store.file_system import file_system_of, refuse_network

    store: str | None = parameters["store"]
    if store is None and not is_object(parameters["output"]):
        file = Path(parameters["output"]) / "dray.db"  # the default; an output is often on a network's disk
        refuse_network(file, file_system_of(file))
    if store is None or store.startswith("block:"):
        return
    if store.startswith("env:"):
        name = store.removeprefix("env:")
        store = os.environ.get(name)
        if not store:
            raise ConfigError(f"environment variable {name} is not set")
    open_store(store, patience=_PATIENCE).close()
