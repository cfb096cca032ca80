"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dray.cli.help import JSON_HELP

Json = Annotated[bool, Parameter(name="--json", negative=(), help=JSON_HELP)]
StoreOption = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="Result store: URL, env:NAME, block:NAME or a run's output folder. If left out: $DRAY_STORE or "
        "this folder.",
    ),
]  # fmt: skip
ObjectsOption = Annotated[
    str | None,
    Parameter(name="--objects", help="As of `dray run`: block:NAME, credentials for object stores."),
]
