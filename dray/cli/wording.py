"""A job's facts as people read them: a few labelled lines, and what they can do next."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dray.cli.facts import Facts
from dray.job.driverless import INPUT_REFUSED
from dray.store import JobState
from dray.wording import compact, count, duration, plain, plural, rate, share

_SHARDS = {"done": "done", "leased": "running", "pending": "waiting", "split": "split into smaller ones"}
_MOST_REPLICAS = 8  # listed by name on a node; a node with more gets a count for each state
_MOST_NODES = 20


def status_lines(facts: Facts, *, now: float, store: str | None = None) -> list[str]:
    """All there is to say of a job, each line with its label.

    ``now`` is seconds since 1970; ``store`` is how the user named the store, for the commands to run next.
    """
    said = [
        ("job", f"{facts['job_id']}  {plain(facts['state'])}"),
        ("since", _since(facts, now)),
        ("reason", facts["reason"]),
        ("driver", facts["no_driver"]),
        ("model", facts["model"]),
        ("rows", _rows(facts)),
        ("rate", _rate(facts)),
        ("tokens", _tokens(facts["tokens"])),
        ("shards", _shards(facts["shards"])),
        *_replicas(facts["replicas"]),
        ("retries", ", ".join(f"{count(n)} after {cause}" for cause, n in facts["retries"].items())),
        *((name, facts[name]) for name in ("output", "errors", "report")),
        ("next", next_step(facts, store)),
    ]
    return [f"{label:<9} {text}" for label, text in said if text]


def next_step(facts: Facts, store: str | None) -> str:
    """What the user can do now."""
    job, where = facts["job_id"], _store_option(store)
    state = facts["state"]
    if state == "completed":
        return ""
    if state == "failed" and _was_refused(facts):
        return f"mend the input, then `dray resume {job}{where}` reads it again"
    if state == "failed":
        return f"see the reason, then `dray resume {job}{where}` goes on; finished rows are kept"
    if state in ("paused", "cancelled") and facts["budget_spent"]:
        higher = f"`dray resume {job} --budget DOLLARS{where}` with a higher budget"
        return f"{higher} goes on; finished rows are kept"
    if state in ("paused", "cancelled"):
        return f"`dray resume {job}{where}` goes on; finished rows are kept"
    if state == "expired":
        return _after_expiry(facts["counts"], job, where)
    if facts["no_driver"]:
        return f"`dray resume {job}{where}` goes on; `dray cancel {job}{where}` gives it up"
    if facts["cancel_requested"]:
        return "it was asked to stop: finished rows are being written"
    return f"`dray status {job} --watch{where}` follows it; `dray cancel {job}{where}` stops it"


def _after_expiry(counts: Facts, job: str, where: str) -> str:
    if not counts["total"]:
        return "its time is over: the same `dray run` with a longer --completion-window, or none, begins anew"
    if counts["pending"]:
        return (
            f"its time is over: `dray resume {job}{where}` writes error rows for the rows that are left, "
            f"and the files; `dray export {job} --output FOLDER{where}` writes the finished rows"
        )
    return (
        f"its time is over: every unfinished row is an error row; `dray export {job} --failed-requests "
        f"FILE.jsonl{where}` writes their requests, which `dray run` answers with another --output"
    )


def cancel_line(facts: Facts, store: str | None) -> str:
    """The result of a user's cancel, in a line."""
    job, state = facts["job_id"], JobState(facts["state"])
    if state is JobState.CANCELLED:
        return f"job {job}: cancelled; finished rows are kept"
    if state is JobState.FAILED:  # no restart policy is to revive it
        return f"job {job} is failed, and goes on only with `dray resume {job}{_store_option(store)}` now"
    if state.at_rest:
        return f"job {job} is {plain(facts['state'])}: there is nothing to cancel"
    follows = f"`dray status {job} --watch{_store_option(store)}` follows it"
    return f"job {job}: its driver was asked to cancel it, and stops; {follows}"


def job_table(found: Sequence[Facts]) -> list[str]:
    """The jobs of a store, one per line, under a head."""
    head = ("CREATED", "STATE", "ROWS DONE", "OF", "SHARE", "ERRORS", "JOB")
    rows = [head, *(_job_row(facts) for facts in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = {2, 3, 4, 5}
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _job_row(facts: Facts) -> tuple[str, ...]:
    counts = facts["counts"]
    finished = counts["done"] + counts["failed"]
    return (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(facts["created_at"])),
        plain(facts["state"]),
        count(counts["done"]),
        count(counts["total"]),
        share(finished, counts["total"]),
        count(counts["failed"]),
        facts["job_id"],
    )


def _since(facts: Facts, now: float) -> str:
    created = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(facts["created_at"]))
    return f"{created} ({duration(max(round(now - facts['created_at']), 0))} ago)"


def _rows(facts: Facts) -> str:
    counts = facts["counts"]
    if not counts["total"]:
        return _without_rows(facts)
    finished = counts["done"] + counts["failed"]
    return (
        f"{count(counts['done'])} done, {plural(counts['failed'], 'error')}, {count(counts['pending'])} left "
        f"of {count(counts['total'])} ({share(finished, counts['total'])})"
    )


def _without_rows(facts: Facts) -> str:
    if _was_refused(facts):
        return f"none: {INPUT_REFUSED}"
    if facts["no_driver"] or JobState(facts["state"]).at_rest:
        return "none: the input was not read to its end"
    return "none yet: the input is being read"


def _was_refused(facts: Facts) -> bool:
    return (facts["reason"] or "").startswith(INPUT_REFUSED)


def _rate(facts: Facts) -> str:
    if facts["rows_per_second"] is None:
        return ""
    told = f"{rate(facts['rows_per_second'])} rows/s, {compact(facts['tokens_per_second'])} tokens/s "
    left = facts["seconds_left"]
    return f"{told}over the last minute" + (f"; {duration(max(round(left), 1))} left" if left else "")


def _tokens(tokens: Facts) -> str:
    if not tokens["prompt"] and not tokens["completion"]:
        return ""
    return (
        f"{count(tokens['prompt'])} prompt ({count(tokens['cached'])} cached), "
        f"{count(tokens['completion'])} completion"
    )


def _shards(states: Facts) -> str:
    told = [f"{count(states[state])} {word}" for state, word in _SHARDS.items() if states.get(state)]
    return ", ".join(told)


def _replicas(found: Sequence[Facts]) -> list[tuple[str, str]]:
    """Node by node; those that have no node yet come last."""
    nodes: dict[str | None, list[Facts]] = {}
    for replica in found:
        nodes.setdefault(replica["node"], []).append(replica)
    named = sorted((node for node in nodes if node), key=str)
    lines = [f"{node}: {_on_node(nodes[node])}" for node in named[:_MOST_NODES]]
    if len(named) > _MOST_NODES:
        rest = sum(len(nodes[node]) for node in named[_MOST_NODES:])
        lines.append(f"{plural(rest, 'more replica')} on {plural(len(named) - _MOST_NODES, 'more node')}")
    if None in nodes:
        lines.append(f"no node yet: {_on_node(nodes[None])}")
    lines += _not_at_work(found)
    return [("replicas" if not number else "", line) for number, line in enumerate(lines)]


def _not_at_work(found: Sequence[Facts]) -> list[str]:
    """Which replicas do not work, and why: those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for replica in found:
        if replica.get("note"):
            reasons.setdefault(replica["note"], []).append(replica["name"])
    return [
        f"{', '.join(names) if len(names) <= _MOST_REPLICAS else plural(len(names), 'replica')}: "
        f"{'each ' if len(names) > 1 else ''}{reason}"
        for reason, names in reasons.items()
    ]


def _on_node(replicas: Sequence[Facts]) -> str:
    if len(replicas) <= _MOST_REPLICAS:
        return ", ".join(f"{replica['name']} {replica['state']}" for replica in replicas)
    states: Counter[Any] = Counter(replica["state"] for replica in replicas)
    return ", ".join(f"{count(number)} {state}" for state, number in states.most_common())


def _store_option(store: str | None) -> str:
    if store is None or "@" in store or "password" in store.lower():
        return ""
    return f" --store {shlex.quote(store)}"
