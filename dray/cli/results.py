"""What a run came to: from the store, where the run itself did not say, and in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dray.cli import output
from dray.errors import DrayError, raised_at
from dray.job import current_job
from dray.storage.files import FULL, is_full

if TYPE_CHECKING:
    from dray.job.open_job import OpenJob
    from dray.store import Progress


def stored_result() -> dict[str, Any]:
    """The result of the job as its store has it; of one that was cancelled before it had any, its counts."""
    from dray.job.open_job import reopen

    job = current_job.latest()
    if job is None:
        return _without_result(None, None)
    with reopen(job) as store:
        kept = store.get_job(job.job_id).summary.get("result")
        return dict(kept or _without_result(job, store.progress(job.job_id)))


def _without_result(job: OpenJob | None, progress: Progress | None) -> dict[str, Any]:
    """All keys of a result, for a run that was cancelled before there was one."""
    from dray.job.ending.result import JobResult
    from dray.report.data import Saved

    counts = progress.counts if progress else None
    result = JobResult(
        job_id=job.job_id if job else "",
        state="cancelled",
        counts={
            "total": counts.total if counts else 0,
            "done": counts.done if counts else 0,
            "failed": counts.failed if counts else 0,
            "skipped": job.skipped if job else 0,
        },
        tokens={
            "prompt": progress.prompt_tokens if progress else 0,
            "cached": progress.cached_tokens if progress else 0,
            "completion": progress.completion_tokens if progress else 0,
        },
        seconds={},
        interruptions=0,
        retries={},
        cost=None,
        output=None,
        errors=None,
        report=None,
        saved=asdict(Saved()),
    )
    return result.as_dict() | ({} if job else {"job_id": None})


def unforeseen(error: BaseException) -> DrayError:
    """What users see of an error that is not dray's: its class and its place. Its text may quote rows."""
    advice = f"; {FULL}" if is_full(error) else ""
    return DrayError(f"the run failed: {type(error).__name__}{raised_at(error)}{advice}")


def _summarise_shared(result: dict[str, Any]) -> None:
    """Rows without an engine, and rows that did not fit; an earlier version's result has neither."""
    saved, overflow = result.get("saved") or {}, result.get("overflow") or {}
    if saved.get("repeated") or saved.get("reused"):
        from dray.wording import plural

        reused = plural(saved["reused"], "answer")
        output.say(
            f"saved     {plural(saved['repeated'], 'repeated row')}, {reused} of earlier jobs: "
            f"{saved['prompt']:,} prompt and {saved['completion']:,} completion tokens"
        )
    if overflow:
        output.say(f"overflow  {', '.join(f'{count:,} {name}' for name, count in overflow.items())}")


def summarise(result: dict[str, Any]) -> None:
    """Say what came of the rows, where their answers are, and where the time went."""
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
    _summarise_shared(result)
    for name, tuned in (result.get("tuned") or {}).items():
        output.say(
            f"tuned     {name}: max_num_active_seqs={tuned['max_num_active_seqs']}, max_num_scheduled_tokens="
            f"{tuned['max_num_scheduled_tokens']}, {tuned['gain']:.2f} times as fast as started"
        )
    if seconds:
        parts = ", ".join(
            f"{name} {value:.1f}" for name, value in seconds.items() if name != "total" and value >= 0.05
        )
        output.say(f"seconds   {seconds['total']:.1f}" + (f" ({parts})" if parts else ""))
    cost = result.get("cost")  # a result of an earlier version has none
    if cost and cost["dollars"] is not None:
        output.say(f"cost      {_cost(cost)}")
    for name in ("output", "errors", "report"):
        if result[name]:
            output.say(f"{name:<9} {result[name]}")
    if result["output"] is None and counts["done"] + counts["failed"]:
        command = f"dray export {result['job_id']} --output FOLDER{_store_of_the_job()}"
        output.say(f"output    none; `{command}` writes what is done")
    _warn_of_failure(result)


def _warn_of_failure(result: dict[str, Any]) -> None:
    """Where no row has an answer: most often one option is wrong for all of them."""
    counts, codes = result["counts"], result.get("error_codes") or {}  # an earlier version's result has none
    if not counts["total"] or counts["failed"] < counts["total"] or not codes:
        return
    code, rows = max(codes.items(), key=lambda item: item[1])
    share = "" if rows == counts["total"] else f" ({rows:,} of them)"
    output.say(f"warning   all {counts['total']:,} rows failed: {code}{share}")


def _store_of_the_job() -> str:
    from dray.store import store_option

    job = current_job.latest()
    return "" if job is None else store_option(job.settings.store_url)


def _cost(cost: dict[str, Any]) -> str:
    from dray.wording import money, plain

    parts = ", ".join(f"{plain(name)} {money(value)}" for name, value in cost["parts"].items() if value)
    return f"{money(cost['dollars'])} ({parts})"
