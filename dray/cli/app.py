"""The commands, their options, and their exit codes.

0 done (error rows included: they are data), 1 job failed, paused or expired, 2 refused input or usage,
130 cancelled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from dray import __version__
from dray.cli import output
from dray.cli.deleting import jobs
from dray.cli.help import ABOUT, ENGINE, OUTPUT, PLACE, REQUIRED, ROWS, RUN_EXAMPLES, SAMPLING
from dray.cli.introduction import introduction
from dray.cli.models import models
from dray.errors import ConfigError, DrayError
from dray.processes import end
from dray.storage.files import absolute

app = App(
    name="dray",
    help=ABOUT,
    help_format="plaintext",
    default_parameter=Parameter(negative=(), show_default=lambda value: None if value is False else value),
    version=__version__,
    result_action="return_value",
)

app.command(models)
app.command(jobs)

_JSON_HELP = "Print one JSON object on the last line of stdout."
Json = Annotated[bool, Parameter(name="--json", negative=(), help=_JSON_HELP)]
StoreOption = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="Result store: URL, env:NAME, or a run's output folder; else $DRAY_STORE, else this folder.",
    ),
]  # fmt: skip

_OVERWRITE_HELP = "Replace files of others in the output folder."
Overwrite = Annotated[bool, Parameter(name="--overwrite", negative=(), help=_OVERWRITE_HELP)]


def run_app(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(list(arguments), exit_on_error=False, print_error=True)
    except CycloptsError as error:
        return _refused(error, arguments, 2)  # it has explained itself
    except DrayError as error:
        output.explain(error)
        return _refused(error, arguments, error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of stdout has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's end would complain
        return 0
    return code if isinstance(code, int) else 0


def _refused(error: Exception, arguments: Sequence[str], code: int) -> int:
    if "--json" in arguments:
        output.print_json({"error": {"type": type(error).__name__, "message": str(error)}})
    return code


@app.command(help_epilogue=RUN_EXAMPLES)
def run(
    inputs: Annotated[
        list[str],
        Parameter(
            group=REQUIRED,
            name="INPUT",
            help="Files, globs or URIs of requests; a database URL with --query.",
        ),
    ],
    /,
    *,
    model: Annotated[
        str, Parameter(group=REQUIRED, help="Model: a directory, the URI of one, or block:NAME.")
    ],
    output_: Annotated[
        str, Parameter(group=REQUIRED, name="--output", help="Folder or URI for output, errors and report.")
    ],
    job_id: Annotated[
        str | None, Parameter(group=PLACE, help="Name of the job; derived from its content when left out.")
    ] = None,
    store: Annotated[
        str | None, Parameter(group=PLACE, help="Result store; SQLite in the output folder when left out.")
    ] = None,
    kind: Annotated[
        Literal["chat", "completion", "embedding"],
        Parameter(group=ROWS, help="What rows with columns ask for."),
    ] = "chat",
    prompt_column: Annotated[str | None, Parameter(group=ROWS, help="Column that holds the prompt.")] = None,
    template: Annotated[
        str | None, Parameter(group=ROWS, help="Prompt made from columns: 'Summarise: {text}'.")
    ] = None,
    messages_column: Annotated[
        str | None,
        Parameter(group=ROWS, help="Column of chat messages; found in JSON lines and Parquet when left out."),
    ] = None,
    system_prompt: Annotated[
        str | None, Parameter(group=ROWS, help="System message for chat rows that do not begin with one.")
    ] = None,
    id_column: Annotated[str | None, Parameter(group=ROWS, help="Column that holds a unique id.")] = None,
    query: Annotated[str | None, Parameter(group=ROWS, help="SQL query to read rows with.")] = None,
    delimiter: Annotated[
        str | None,
        Parameter(group=ROWS, help="Between the values of a CSV file, if no comma: ';', '|' or tab."),
    ] = None,
    max_tokens: Annotated[
        int | None, Parameter(group=SAMPLING, help="Tokens to generate at most, where a row says nothing.")
    ] = None,
    temperature: Annotated[
        float | None, Parameter(group=SAMPLING, help="Sampling temperature; 0 is greedy.")
    ] = None,
    top_p: Annotated[float | None, Parameter(group=SAMPLING, help="Nucleus sampling.")] = None,
    seed: Annotated[int | None, Parameter(group=SAMPLING, help="Seed of each request's sampling.")] = None,
    param: Annotated[
        list[str] | None, Parameter(group=SAMPLING, help="KEY=VALUE: any other field of the request body.")
    ] = None,
    model_name: Annotated[
        str | None, Parameter(group=ROWS, help="Name rows may carry in body.model.")
    ] = None,
    cluster: Annotated[
        str, Parameter(group=PLACE, help="local, block:NAME, or the address of a Ray cluster.")
    ] = "local",
    engine: Annotated[Literal["vllm", "simulated"], Parameter(group=ENGINE, help="The engine.")] = "vllm",
    engine_arg: Annotated[
        list[str] | None, Parameter(group=ENGINE, help="KEY=VALUE: engine argument, as vLLM names it.")
    ] = None,
    replicas: Annotated[
        int | None, Parameter(group=ENGINE, help="Engines to run; one per GPU when left out.")
    ] = None,
    replica_cpus: Annotated[
        float | None,
        Parameter(group=ENGINE, help="CPUs each engine asks the cluster for; what fits when left out."),
    ] = None,
    replica_gpus: Annotated[
        float | None,
        Parameter(group=ENGINE, help="GPUs each engine asks for; 0: none; one per rank when left out."),
    ] = None,
    stall_seconds: Annotated[
        float | None,
        Parameter(group=ENGINE, help="End an engine that gets no further for so long; 600 when left out."),
    ] = None,
    shard_rows: Annotated[
        int | None, Parameter(group=ENGINE, help="Rows of a shard; at most 8192 when left out.")
    ] = None,
    completion_window: Annotated[
        str | None, Parameter(group=PLACE, help="24h, 90m: what is unfinished by then becomes error rows.")
    ] = None,
    objects: Annotated[
        str | None, Parameter(group=PLACE, help="block:NAME of object-store credentials.")
    ] = None,
    format_: Annotated[
        Literal["jsonl", "parquet"], Parameter(group=OUTPUT, name="--format", help="Format of the outputs.")
    ] = "jsonl",
    skip_invalid: Annotated[
        bool, Parameter(group=ROWS, negative=(), help="Turn invalid rows into error rows.")
    ] = False,
    resume_: Annotated[
        bool,
        Parameter(group=PLACE, name="--resume", negative=(), help="Go on with the job if it was cancelled."),
    ] = False,
    overwrite: Annotated[
        bool, Parameter(name="--overwrite", group=OUTPUT, negative=(), help=_OVERWRITE_HELP)
    ] = False,
    json: Annotated[bool, Parameter(name="--json", group=OUTPUT, negative=(), help=_JSON_HELP)] = False,
) -> int:
    """Run a batch of requests, or go on with it where it stopped.

    The same command again goes on with the job; Ctrl-C once stops it in order. One that was cancelled (dray
    cancel, or in Prefect) goes on with --resume.
    """
    if query is not None and len(inputs) != 1:
        raise ConfigError(f"--query reads one database: name one database URL, and not {len(inputs)}")
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    parameters: dict[str, Any] = {
        "input": [absolute(item) for item in inputs] if query is None else inputs[0],
        "model": model if model.startswith("block:") else absolute(model),
        "output": absolute(output_),
        "job_id": job_id,
        "rows": {
            "kind": kind,
            "prompt_column": prompt_column,
            "template": template,
            "messages_column": messages_column,
            "system_prompt": system_prompt,
            "id_column": id_column,
            "query": query,
            "delimiter": delimiter,
            "model_name": model_name,
            "skip_invalid": skip_invalid,
        },
        "sampling": {k: v for k, v in sampling.items() if v is not None} | {"extra": pairs(param, "--param")},
        "engine": {
            "name": engine,
            "replicas": replicas,
            "arguments": pairs(engine_arg, "--engine-arg"),
            **_given(
                stall_seconds=stall_seconds,
                shard_rows=shard_rows,
                replica_cpus=replica_cpus,
                replica_gpus=replica_gpus,
            ),
        },
        "store": _absolute_store(store),
        "cluster": cluster,
        "objects": objects,
        "format": format_,
        "completion_window": completion_window,
        "resume": resume_,
        "overwrite": overwrite,
    }
    output.stage(introduction(parameters))
    from dray.cli.running import run_job  # takes a second: the line above comes first

    return run_job(parameters, json=json)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@app.command
def resume(
    job_id: str, /, *, store: StoreOption = None, overwrite: Overwrite = False, json: Json = False
) -> int:
    """Go on with a job that was stopped, with the settings it was started with."""
    output.stage(f"job {job_id}: reading how it was started")
    from dray.cli.jobs import recipe_of
    from dray.cli.running import run_job

    parameters = {**recipe_of(job_id, store), "resume": True, "overwrite": overwrite}
    output.stage(introduction(parameters))
    return run_job(parameters, json=json)


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
    """How far a job is, and how fast; the latest one when no id is given."""
    from dray.cli.status import show_status, watch_status

    return (watch_status if watch else show_status)(job_id, store, json=json)


@app.command
def cancel(job_id: str, /, *, store: StoreOption = None, json: Json = False) -> int:
    """Ask a running job to stop; finished rows are kept and it can be resumed."""
    from dray.cli.jobs import cancel_job

    return cancel_job(job_id, store, json=json)


@app.command
def export(
    job_id: str,
    /,
    *,
    output_: Annotated[str, Parameter(name="--output", help="Folder or URI for the files.")],
    format_: Annotated[Literal["jsonl", "parquet"], Parameter(name="--format")] = "jsonl",
    store: StoreOption = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> int:
    """Write the finished rows of a job to files in another folder, while it runs or later."""
    from dray.cli.jobs import export_job

    return export_job(job_id, absolute(output_), format_, store, overwrite=overwrite, json=json)


@app.command
def report(
    job_id: str,
    /,
    *,
    output_: Annotated[str, Parameter(name="--output", help="The HTML file to write.")] = "report.html",
    store: StoreOption = None,
    json: Json = False,
) -> int:
    """Write the report of a job that has ended once more."""
    from dray.cli.jobs import rewrite_report

    return rewrite_report(job_id, absolute(output_), store, json=json)


@app.command
def doctor(*, model: str | None = None, store: StoreOption = None, json: Json = False) -> int:
    """Check what a run on this machine needs, and say what is missing."""
    from dray.cli.doctor import examine

    return examine(model, store, json=json)


def pairs(given: list[str] | None, option: str) -> dict[str, Any]:
    """KEY=VALUE pairs; values are JSON where they parse as such, else text."""
    import orjson

    found: dict[str, Any] = {}
    for item in given or ():
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise ConfigError(f"{option} {item!r}: write it as KEY=VALUE")
        try:
            found[key.replace("-", "_")] = orjson.loads(value)
        except orjson.JSONDecodeError:
            found[key.replace("-", "_")] = value
    return found


def _absolute_store(store: str | None) -> str | None:
    """SQLite files likewise, whichever way they are named."""
    if store is None or store.startswith(("env:", "block:")):
        return store
    file = store.removeprefix("sqlite:///")
    return store if "://" in file else absolute(file)


if __name__ == "__main__":
    end(run_app(sys.argv[1:]))
