"""``dray run``: from a command line to a request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from dray.cli import output
from dray.cli.default_store import with_default_store
from dray.cli.help import JSON_HELP, OUTPUT, REQUIRED
from dray.cli.introduction import introduction
from dray.cli.options import request_of, with_options
from dray.storage.default_store import STORE_VARIABLE


@with_options
def run(
    inputs: Annotated[
        list[str],
        Parameter(
            group=REQUIRED,
            name="INPUT",
            help="Paths, globs, object-store URIs or files of a dataset (hf://datasets/ORG/NAME/PATH): "
            "OpenAI batch JSONL, or rows as JSONL, CSV, TSV or Parquet. With --query: a database URL.",
        ),
    ],
    /,
    *,
    json: Annotated[bool, Parameter(name="--json", group=OUTPUT, negative=(), help=JSON_HELP)] = False,
    **options: Any,
) -> int:
    """Run a job; its help is in dray/cli/help.py, which is shown before this module is imported."""
    given = request_of(inputs, options).dated(datetime.now(UTC))
    request = with_default_store(given)
    output.stage(introduction(request))
    if given.store is None and request.store is not None:
        output.stage(f"its store is that of ${STORE_VARIABLE}, as --store is not given")
    from dray.cli.running import run_job  # takes a second: the line above comes first

    return run_job(request, json=json)
