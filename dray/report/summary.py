"""What a job came to, in a few figures and sentences; shared by the page and the markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dray import wording
from dray.report.data import ReportData
from dray.requests.model import EXPIRED

Tone = Literal["good", "bad", "quiet"]

_ENDINGS = {"failed": "failed", "cancelled": "was cancelled", "expired": "expired", "paused": "is paused"}
_OVERFLOW = {
    "shortened": "the answer got fewer tokens",
    "cut-head": "the begin of the prompt was cut",
    "cut-tail": "the end of the prompt was cut",
}
_MOST_NAMED = 8  # replicas in one sentence


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A headline number, what it counts, and one line of context."""

    name: str
    value: str
    note: str = ""
    bad: bool = False


def tone(state: str) -> Tone:
    """How a state is coloured."""
    if state == "completed":
        return "good"
    return "bad" if state == "failed" else "quiet"


def figures(data: ReportData) -> tuple[Figure, ...]:
    """The headline: rows, rates, time and errors."""
    found = (_rows(data), _row_rate(data), _token_rate(data), _time(data), _errors(data))
    return (*found, *_cost(data))


def sentences(data: ReportData) -> tuple[str, ...]:
    """How the job ended, what was there before, and what got in the way."""
    found = [_ending(data)]
    if data.counts.skipped:
        found.append(f"{wording.plural(data.counts.skipped, 'row')} had been finished before this run.")
    if data.interruptions:
        found.append(f"{wording.plural(data.interruptions, 'interruption')} on the way.")
    if data.retries:
        told = ", ".join(f"{wording.count(n)} after {cause}" for cause, n in data.retries.items())
        found.append(f"Shards tried again: {told}.")
    return (*found, *_tuned(data), *_saved(data), *_unused(data))


def _tuned(data: ReportData) -> list[str]:
    """What the first replicas found with ``--auto``."""
    return [
        f"{one.name} found its limits in {wording.duration(one.tuned['seconds'])}, on "
        f"{wording.count(int(one.tuned['sequences']))} sequences: "
        f"max_num_active_seqs={one.tuned['max_num_active_seqs']:.0f}, "
        f"max_num_scheduled_tokens={one.tuned['max_num_scheduled_tokens']:.0f}, the best of "
        f"{one.tuned['settings']:.0f}, {one.tuned['gain']:.2f} times as fast as it was started."
        for one in data.replicas
        if one.tuned
    ][:_MOST_NAMED]


def _saved(data: ReportData) -> list[str]:
    """Rows that needed no engine, and rows that did not fit."""
    saved, found = data.measures.saved, []
    if saved.repeated:
        found.append(f"{wording.plural(saved.repeated, 'row')} took the outcome of a row that asks the same.")
    if saved.reused:
        found.append(f"{wording.plural(saved.reused, 'row')} took the answer of an earlier job.")
    if saved.rows:
        tokens = f"{wording.compact(saved.prompt)} prompt and {wording.compact(saved.completion)} completion"
        found.append(f"That saved {tokens} tokens.")
    for name, rows in data.measures.overflow.items():
        told = _OVERFLOW.get(name, name)
        found.append(f"{wording.plural(rows, 'row')} did not fit into the context: {told}.")
    return found


def _unused(data: ReportData) -> list[str]:
    """Replicas that answered nothing, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for name, reason in data.unused.items():
        reasons.setdefault(reason, []).append(name)
    return [
        f"{', '.join(names) if len(names) <= _MOST_NAMED else wording.plural(len(names), 'replica')} "
        f"answered nothing: {'each ' if len(names) > 1 else ''}{reason}."
        for reason, names in reasons.items()
    ]


def _ending(data: ReportData) -> str:
    counts = data.counts
    because = f" ({data.reason})" if data.reason else ""
    if data.state == "completed" and not counts.total:
        return f"The input held no rows.{because}"
    if data.state == "completed" and not counts.failed:
        return f"Every one of the {wording.plural(counts.total, 'row')} has an answer.{because}"
    if data.state == "completed":
        return (
            f"All {wording.plural(counts.total, 'row')} are finished: "
            f"{wording.count(counts.done)} with an answer, "
            f"{wording.count(counts.failed)} with an error.{because}"
        )
    if data.state == "expired" and not counts.pending:
        return (
            f"The job expired{because}: its time was over for {wording.count(_expired(data))} of "
            f"{wording.plural(counts.total, 'row')}, each with the error code expired."
        )
    ended = _ENDINGS.get(data.state, f"is still {wording.plain(data.state)}")
    left = f" with {wording.count(counts.pending)} of {wording.plural(counts.total, 'row')} not finished"
    kept = "; what is finished is kept, and `dray resume JOB` goes on"
    return f"The job {ended}{because}{left if counts.total else ''}{kept if counts.finished else ''}."


def _expired(data: ReportData) -> int:
    return sum(error.count for error in data.measures.errors if error.code == EXPIRED)


def _rows(data: ReportData) -> Figure:
    counts = data.counts
    note = f"of {wording.count(counts.total)}" if counts.pending else "all rows"
    return Figure(
        name="rows finished", value=wording.count(counts.finished), note=note if counts.total else ""
    )


def _row_rate(data: ReportData) -> Figure:
    seconds = data.seconds.get("inference", 0.0)
    note = f"over {wording.duration(seconds)} of inference" if data.rows_per_second else ""
    return Figure(name="rows a second", value=wording.rate(data.rows_per_second), note=note)


def _token_rate(data: ReportData) -> Figure:
    speed = data.tokens_per_second
    ran = data.measures.run_tokens
    note = f"{wording.share(ran.cached, ran.prompt)} of the prompt cached" if speed and ran.cached else ""
    return Figure(name="tokens a second", value=wording.compact(speed) if speed else wording.NONE, note=note)


def _time(data: ReportData) -> Figure:
    total = data.seconds.get("total", 0.0)
    inference = data.seconds.get("inference", 0.0)
    note = f"{wording.share(min(inference, total), total)} in inference" if inference and total else ""
    return Figure(name="wall time", value=wording.duration(total), note=note)


def _errors(data: ReportData) -> Figure:
    failed = data.counts.failed
    note = f"{wording.share(failed, data.counts.finished)} of finished rows" if failed else "none"
    return Figure(name="errors", value=wording.count(failed), note=note, bad=failed > 0)


def _cost(data: ReportData) -> tuple[Figure, ...]:
    """What the job cost, where that is known."""
    account = data.account
    if account is None or account.dollars is None:
        return ()
    per_million = account.dollars_per_million_tokens
    note = f"{wording.money(per_million)} per million tokens" if per_million is not None else ""
    return (Figure(name="cost", value=wording.money(account.dollars), note=note),)
