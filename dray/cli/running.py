"""``dray run``: the flow, with Prefect's server, signals and exit codes around it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from dray.cli import output, terminal
from dray.cli.early import refuse_early
from dray.cli.flow import the_flow
from dray.cli.introduction import starting
from dray.cli.jobs import HIDDEN_INPUT
from dray.cli.server import PrefectServer, configured
from dray.errors import CancelledError, DrayError, FencedError, StoreError
from dray.job import current_job
from dray.job.request import JobRequest
from dray.processes import kill_descendants
from dray.storage.addresses import VARIABLE, names_login

if TYPE_CHECKING:
    from dray.job.opening import OpenJob
    from dray.store import Progress

_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The run's own short lines take the place of Prefect's console format; its UI has everything.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS": "dray.cli.output.RunLog",
}


_HIDDEN = {"store": "DRAY_STORE_URL", "input": HIDDEN_INPUT}


def run_job(request: JobRequest, *, json: bool) -> int:
    """Run the flow for ``request`` and return the exit code."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    output.stage("checking input, model, output and store")
    refuse_early(request)
    request = _without_logins(request)
    output.stage(starting(request.cluster, os.environ.get("PREFECT_API_URL")))
    with _bar(json=json), _signals(), _server() as server, _early_cluster(request.cluster):
        result = _run_flow(request.model_dump(), server)
    if json:
        output.print_json(result)
    else:
        _summarise(result)
    return {"completed": 0, "cancelled": 130}.get(result["state"], 1)


@contextmanager
def _bar(*, json: bool) -> Iterator[None]:
    """On a terminal, a bar below the run's lines."""
    with terminal.bar(plain=terminal.is_plain(json=json)) as shown:
        if shown is None:
            yield
            return
        with current_job.hearing(shown.hear):
            yield


def _without_logins(request: JobRequest) -> JobRequest:
    """Prefect keeps the parameters of every run: a URL with a login goes by way of the environment."""
    hidden: dict[str, str] = {}
    for name, variable in _HIDDEN.items():
        value = getattr(request, name)
        if isinstance(value, str) and names_login(value):
            os.environ[variable] = value
            hidden[name] = f"{VARIABLE}{variable}"
    return request.model_copy(update=hidden)


@contextmanager
def _server() -> Iterator[PrefectServer | None]:
    """Prefect's own server where none is configured; it boots while everything else is imported."""
    if configured():
        yield None
        return
    server = PrefectServer()
    server.start()
    os.environ["PREFECT_API_URL"] = server.url
    try:
        yield server
    finally:
        server.stop()
        os.environ.pop("PREFECT_API_URL", None)


@contextmanager
def _early_cluster(cluster: str) -> Iterator[None]:
    """Ray starts while Prefect is imported and its server boots."""
    if cluster != "local":
        yield
        return
    from dray.cluster import release_early, start_early

    start_early()
    try:
        yield
    finally:
        release_early()


def _run_flow(parameters: dict[str, Any], server: PrefectServer | None) -> dict[str, Any]:
    batch_inference, flush_prefect = the_flow()
    if server is not None:
        server.wait()
    try:
        state = batch_inference(**parameters, return_state=True)
    except Exception as error:  # noqa: BLE001  Prefect's own: the flow's errors are in its state
        return _despite(error)
    finally:
        flush_prefect()
    if state.is_cancelled():
        if (
            current_job.latest() is None
        ):  # it was cancelled before, and is not revived by repeating its command
            raise CancelledError(state.message or "the run was cancelled before there was a job")
        return _stored_result()
    outcome: Any = state.result(raise_on_failure=False)
    if state.is_completed():
        return dict(outcome.as_dict())  # of this run; the store keeps that of the run that did the work
    if isinstance(outcome, DrayError):
        raise outcome
    if isinstance(outcome, BaseException):
        raise DrayError(f"the flow failed: {type(outcome).__name__}: {str(outcome)[:300]}") from outcome
    raise DrayError(f"the flow ended as {state.name}")


def _despite(error: Exception) -> dict[str, Any]:
    """The result of a job that was done when Prefect failed.

    Raises:
        DrayError: it was not done; says whether there is anything to go on with.
    """
    from dray.store import JobState, open_store

    failure = f"Prefect failed: {type(error).__name__}: {str(error)[:300]}"
    job = current_job.latest()
    if job is None:
        raise DrayError(failure) from error
    with open_store(job.settings.store_url, create=False) as store:
        done = store.get_job(job.job_id).state is JobState.COMPLETED
    if not done:
        raise DrayError(f"{failure}; `dray resume {job.job_id}` goes on") from error
    output.say(f"dray: the job is done; Prefect was not told so ({type(error).__name__})")
    return _stored_result()


def _stored_result() -> dict[str, Any]:
    """The result of the job as its store has it; of one that was cancelled before it had any, its counts."""
    from dray.store import open_store

    job = current_job.latest()
    if job is None:
        return _without_result(None, None)
    with open_store(job.settings.store_url, create=False) as store:
        kept = store.get_job(job.job_id).summary.get("result")
        return dict(kept or _without_result(job, store.progress(job.job_id)))


def _without_result(job: OpenJob | None, progress: Progress | None) -> dict[str, Any]:
    """All keys of a result, for a run that was cancelled before there was one."""
    counts = progress.counts if progress else None
    return {
        "job_id": job.job_id if job else None,
        "state": "cancelled",
        "counts": {
            "total": counts.total if counts else 0,
            "done": counts.done if counts else 0,
            "failed": counts.failed if counts else 0,
            "skipped": job.skipped if job else 0,
        },
        "tokens": {
            "prompt": progress.prompt_tokens if progress else 0,
            "cached": progress.cached_tokens if progress else 0,
            "completion": progress.completion_tokens if progress else 0,
        },
        "seconds": {},
        "interruptions": 0,
        "retries": {},
        "output": None,
        "errors": None,
        "report": None,
    }


@contextmanager
def _signals() -> Iterator[None]:
    """Ctrl-C or SIGTERM asks the job to stop and lets it write what it has; a second one ends all at once."""
    asked = threading.Event()

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.alarm(0)  # Ray's core takes a SIGTERM for a failure, and wants to abort 3 s later
        if asked.is_set() or current_job.latest() is None:
            output.say("dray: stopped at once; run the same command again to go on")
            terminal.leave()
            kill_descendants()
            os._exit(130)
        asked.set()
        output.say("dray: stopping; finished rows are kept (Ctrl-C again stops at once)")
        threading.Thread(target=_cancel, daemon=True).start()

    def take_over(_job: OpenJob) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_interrupt)

    before = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # When the flow begins, Prefect puts its own handler for SIGTERM, which makes a crash of it.
        with current_job.calling(take_over):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel() -> None:
    from dray.job.cancelling import cancel

    job = current_job.latest()
    if job is None:
        return
    try:
        # A signal stops this run: the same command goes on. `dray cancel` cancels the job.
        cancel(job, for_good=False)
    except FencedError:
        output.say(f"dray: another driver has job {job.job_id}, and goes on with it; this run ends")
    except StoreError as error:
        output.say(
            f"dray: could not ask the store to cancel ({type(error).__name__}); Ctrl-C again stops at once"
        )


def _summarise(result: dict[str, Any]) -> None:
    counts, tokens, seconds = result["counts"], result["tokens"], result["seconds"]
    output.say("")
    output.say(f"job       {result['job_id'] or 'none yet'}  {result['state']}")
    output.say(
        f"rows      {counts['done']:,} done, {counts['failed']:,} failed of {counts['total']:,}"
        + (f" ({counts['skipped']:,} were finished before)" if counts["skipped"] else "")
    )
    output.say(
        f"tokens    {tokens['prompt']:,} prompt ({tokens['cached']:,} cached), "
        f"{tokens['completion']:,} completion"
    )
    if seconds:
        parts = ", ".join(
            f"{name} {value:.1f}" for name, value in seconds.items() if name != "total" and value >= 0.05
        )
        output.say(f"seconds   {seconds['total']:.1f} ({parts})")
    for name in ("output", "errors", "report"):
        if result[name]:
            output.say(f"{name:<9} {result[name]}")
    if result["output"] is None and counts["done"] + counts["failed"]:
        output.say(f"output    none; `dray export {result['job_id']} --output FOLDER` writes what is done")
