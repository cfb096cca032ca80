"""Progress of a running job in one line."""

from __future__ import annotations

from dray.report import wording


def progress_line(
    *,
    finished: int,
    total: int,
    failed: int = 0,
    rows_per_second: float | None = None,
    tokens_per_second: float | None = None,
    seconds_left: float | None = None,
) -> str:
    """Say how far a job is: rows, rates, time to go, errors.

    ``finished`` counts answered and error rows, ``failed`` the latter. The time to go is
    ``seconds_left`` or, where that is None, what ``rows_per_second`` makes of the rest.
    """
    if seconds_left is None and rows_per_second and finished < total:
        seconds_left = (total - finished) / rows_per_second
    parts = [
        f"{wording.count(finished)} of {wording.plural(total, 'row')} ({wording.share(finished, total)})"
    ]
    if rows_per_second:
        parts.append(f"{wording.rate(rows_per_second)} rows/s")
    if tokens_per_second:
        parts.append(f"{wording.compact(tokens_per_second)} tokens/s")
    if seconds_left is not None and finished < total:
        parts.append(f"{wording.duration(max(round(seconds_left), 1))} left")
    if failed:
        parts.append(wording.plural(failed, "error"))
    return " · ".join(parts)
