"""The commands, their options, and their exit codes.

0 done (error rows included: they are data), 1 job failed, paused or expired, 2 refused input or usage,
130 cancelled.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, validators

from dray import __version__
from dray.cli import output, terminal
from dray.cli.cluster import cluster
from dray.cli.deleting import jobs
from dray.cli.flags import Json, ObjectsOption, StoreOption
from dray.cli.help import ABOUT, PLAN, PLAN_EXAMPLES, RUN, RUN_EXAMPLES
from dray.cli.introduction import introduction
from dray.cli.models import models
from dray.errors import ConfigError, DrayError
from dray.storage.absolute_paths import absolute
from dray.storage.layout import PART_BYTES

app = App(
    name="dray",
    help=ABOUT,
    help_format="plaintext",
    default_parameter=Parameter(
        negative=(), show_default=lambda value: None if value is False or value == [] else value
    ),
    version=__version__,
    result_action="return_value",
)

# Its module takes a tenth of a second, for which other commands need not wait: it is imported when called.
app.command("dray.cli.run:run", name="run", help=RUN, help_epilogue=RUN_EXAMPLES)
app.command("dray.cli.plan:plan", name="plan", help=PLAN, help_epilogue=PLAN_EXAMPLES)
app.command(models)
app.command(jobs)
app.command(cluster)

_OVERWRITE_HELP = "Replace files of another job in the output folder."
Overwrite = Annotated[bool, Parameter(name="--overwrite", negative=(), help=_OVERWRITE_HELP)]

PartBytes = Annotated[
    int,
    Parameter(
        name="--part-bytes", validator=validators.Number(gte=1024), help="Most bytes of a file of rows."
    ),
]


_RUNS = {"run", "resume"}
"""Commands whose exit code counts, whether or not their output is read."""


def run_app(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(_readable(arguments), exit_on_error=False, print_error=True)
    except CycloptsError as error:
        return _refused(error, arguments, 2)  # it has explained itself
    except DrayError as error:
        output.explain(error)
        return _refused(error, arguments, error.exit_code)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not _RUNS.intersection(arguments[:1]):
            terminal.discard(sys.stdout)  # its reader has read enough, as `head` does
            return 0
        # No part of dray has said what it means: at least there is no traceback
        failure = DrayError(_plain(error))
        output.explain(failure)
        return _refused(error, arguments, 1, str(failure))
    return code if isinstance(code, int) else 0


def _readable(arguments: Sequence[str]) -> list[str]:
    """The words as cyclopts reads them rightly."""
    words = _dedupe_apart(arguments)
    if words[:1] not in (["run"], ["plan"]):
        return words
    from dray.cli.options import with_texts_joined

    return with_texts_joined(words)


_OF_DEDUPE = {"always", "true", "false", "yes", "no", "1", "0"}


def _dedupe_apart(arguments: Sequence[str]) -> list[str]:
    """``--dedupe`` with a value of its own: cyclopts would take an input that follows it for one."""
    words = list(arguments)
    for place, following in enumerate(words[1:]):
        if words[place] == "--dedupe" and following.lower() not in _OF_DEDUPE:
            words[place] = "--dedupe=true"
    return words


def _refused(error: Exception, arguments: Sequence[str], code: int, message: str | None = None) -> int:
    if "--json" in arguments:
        output.print_result({"error": {"type": type(error).__name__, "message": message or str(error)}})
    return code


def _plain(error: OSError) -> str:
    """The file and the reason of the system; the text of another library may quote an address."""
    reason = error.strerror or f"the command failed: {type(error).__name__}"
    return f"{error.filename}: {reason}" if error.filename is not None else reason


@app.command
def resume(
    job_id: str,
    /,
    *,
    replicas: Annotated[
        str | None, Parameter(help="As of `dray run`: a number, or MIN:MAX. If left out: as of its last run.")
    ] = None,
    deadline: Annotated[
        str | None, Parameter(help="As of `dray run`, such as 6h since the job was created.")
    ] = None,
    budget: Annotated[
        float | None, Parameter(help="As of `dray run`: dollars, earlier runs of the job included.")
    ] = None,
    price: Annotated[
        float | None,
        Parameter(
            help="As of `dray run`: dollars per hour of a node; of earlier runs, too, where none was known."
        ),
    ] = None,
    cluster: Annotated[
        str | None, Parameter(help="As of `dray run`. If left out: the cluster of the job's last run.")
    ] = None,
    store: StoreOption = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> int:
    """Go on with a stopped job, with the settings of its last run, but for what is given here."""
    output.stage(f"job {job_id}: reading how it was started")
    from dray.cli.jobs import recipe_of, with_changes
    from dray.cli.running import run_job
    from dray.job.current_job import begun_before
    from dray.job.options.request import JobRequest
    from dray.job.options.spelling import spelled

    recipe = with_changes(
        recipe_of(job_id, store),
        replicas=replicas,
        deadline=deadline,
        budget=budget,
        price=price,
        cluster=cluster,
    )
    request = JobRequest.read({**recipe, "resume": True, "overwrite": overwrite}, spelled)
    output.stage(introduction(request))
    with begun_before(job_id):
        return run_job(request, json=json)


@app.command
def status(
    job_id: str | None = None,
    /,
    *,
    watch: Annotated[
        bool,
        Parameter(
            negative=(), help="Follow the job until it ends; the exit code is that of its run (0, 1 or 130)."
        ),
    ] = False,
    store: StoreOption = None,
    json: Json = False,
) -> int:
    """Show how far a job is, and how fast. Without an id: the latest job."""
    from dray.cli.status import show_status, watch_status

    return (watch_status if watch else show_status)(job_id, store, json=json)


@app.command
def cancel(job_id: str, /, *, store: StoreOption = None, json: Json = False) -> int:
    """Cancel a job. Its finished rows are kept, and `dray resume` goes on with it."""
    from dray.cli.jobs import cancel_job

    return cancel_job(job_id, store, json=json)


@app.command
def export(
    job_id: str,
    /,
    *,
    output_: Annotated[str | None, Parameter(name="--output", help="Folder or URI for the files.")] = None,
    failed_requests: Annotated[
        str | None,
        Parameter(help="Instead: a JSONL file for the requests of error rows, which `dray run` answers."),
    ] = None,
    code: Annotated[
        list[str] | None,
        Parameter(negative=(), help="With --failed-requests: only error rows of this code; may be repeated."),
    ] = None,
    format_: Annotated[Literal["jsonl", "parquet"], Parameter(name="--format")] = "jsonl",
    without_kept: Annotated[
        bool, Parameter(negative=(), help="Leave out the columns that the job keeps (--keep-columns).")
    ] = False,
    part_bytes: PartBytes = PART_BYTES,
    store: StoreOption = None,
    objects: ObjectsOption = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> int:
    """Write the finished rows of a job to files in another folder, or the requests of its error rows to one.

    While it runs or later.
    """
    from dray.cli.jobs import export_failed, export_job

    if (output_ is None) == (failed_requests is None):
        raise ConfigError("give --output FOLDER for the rows, or --failed-requests FILE.jsonl")
    if failed_requests is not None:
        _refuse_beside_failed(
            {
                "--format parquet": format_ == "parquet",
                "--without-kept": without_kept,
                "--part-bytes": part_bytes != PART_BYTES,
            }
        )
        file, codes = absolute(failed_requests), code or []
        return export_failed(
            job_id, file, store, codes=codes, overwrite=overwrite, objects=objects, json=json
        )
    if code:
        raise ConfigError("--code goes with --failed-requests")
    return export_job(
        job_id,
        absolute(str(output_)),
        format_,
        store,
        part_bytes=part_bytes,
        overwrite=overwrite,
        kept=not without_kept,
        objects=objects,
        json=json,
    )


def _refuse_beside_failed(given: Mapping[str, bool]) -> None:
    """Requests of error rows are one batch file of OpenAI's format, and nothing else."""
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{option} goes with --output: --failed-requests writes one JSONL file of requests"
            )


@app.command
def report(
    job_id: str,
    /,
    *,
    output_: Annotated[
        str | None,
        Parameter(name="--output", help="The HTML file to write. If left out: that of the job's own folder."),
    ] = None,
    store: StoreOption = None,
    json: Json = False,
) -> int:
    """Write the report of a job that has ended again."""
    from dray.cli.jobs import rewrite_report

    return rewrite_report(job_id, output_ and absolute(output_), store, json=json)


@app.command
def doctor(
    *,
    model: Annotated[
        str | None,
        Parameter(
            help="Model to look at: folder or URI. With --calibrate: the folder of one to measure with."
        ),
    ] = None,
    store: Annotated[
        str | None, Parameter(help="Result store to look at: URL, env:NAME or a run's output folder.")
    ] = None,
    calibrate: Annotated[
        bool,
        Parameter(
            negative=(), help="Measure this machine with vLLM for about a minute, for plans and forecasts."
        ),
    ] = False,
    price: Annotated[
        float | None,
        Parameter(
            validator=validators.Number(gte=0), help="With --calibrate: dollars per hour of this machine."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Check what a run on this machine needs, and say what is missing."""
    if calibrate:
        from dray.cli.calibrating import calibrate as measure

        return measure(model, price, json=json)
    if price is not None:
        raise ConfigError("--price goes with --calibrate")
    from dray.cli.doctor import examine

    return examine(model, store, json=json)
