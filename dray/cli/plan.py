"""``dray plan``: from a command line to a table of what a job will take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from dray.cli import output
from dray.cli.help import JSON_HELP, OUTPUT, REQUIRED
from dray.cli.introduction import shown
from dray.cli.options import given_by, options_of, with_options
from dray.job.options.request import BLOCK
from dray.job.options.resolving import Blocks
from dray.job.options.spelling import spelled
from dray.job_plan.request import PlanRequest
from dray.storage.default_store import default_store

_OPTIONS = tuple(options_of(PlanRequest))
_SHOWN = 8


def plan(
    inputs: Annotated[
        list[str],
        Parameter(
            group=REQUIRED,
            name="INPUT",
            help="Paths, globs, object-store URIs or files of a dataset, as for `dray run`. With --query: a "
            "database URL.",
        ),
    ],
    /,
    *,
    json: Annotated[bool, Parameter(name="--json", group=OUTPUT, negative=(), help=JSON_HELP)] = False,
    **options: Any,
) -> int:
    """Plan a job; its help is in dray/cli/help.py, which is shown before this module is imported."""
    request = PlanRequest.read(given_by(inputs, options, _OPTIONS), spelled).dated(datetime.now(UTC))
    named = [request.input] if isinstance(request.input, str) else request.input
    output.stage(f"reading {', '.join(map(shown, named[:3]))}{' ...' if len(named) > 3 else ''}")
    from dray.job_plan.job_plan import plan_job
    from dray.job_plan.wording import lines_of

    with _blocks(request) as blocks:
        found = plan_job(request, blocks, say=output.stage)
    if json:
        output.print_json(found.as_dict())
    else:
        output.tell(*lines_of(found, most=_SHOWN))
    return 0 if found.found.plans else 1


with_options(plan, _OPTIONS)


@contextmanager
def _blocks(request: PlanRequest) -> Iterator[Blocks | None]:
    """Prefect's blocks, where the request or the default store names one."""
    named = (request.model, request.objects, request.store or default_store())
    if not any(one is not None and one.startswith(BLOCK) for one in named):
        yield None
        return
    from dray.cli.with_prefect import prefect_blocks

    with prefect_blocks() as blocks:
        yield blocks
