"""The books of a job: fed the finished rows once, in pages, while the output is written.

Memory is constant and a row costs well under 2 microseconds: columns go through numpy a page at a
time, and only error rows are looked at one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dray.kinds import was_cut
from dray.report.data import Bucket, ErrorCode, Measures, Saved, Tokens
from dray.report.histogram import Histogram
from dray.requests.model import EXPIRED, FOLLOWED, REUSED
from dray.requests.outputs.lines import Finished
from dray.requests.overflow import mark_of

_FIRST_WIDTH = 0.25  # seconds; a power of two, so that folded buckets stay aligned
_MOST_BUCKETS = 240
_MOST_CODES = 100
_EXAMPLES = 5
_OTHER = "other"
_LATENCY_UNIT = 1e-4  # seconds
_PLACE = re.compile(r"(?P<file>[^\n]*?):(?P<line>\d+)(?: \[|: )")  # how the message of a refused row begins

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class FinishedRow(Finished, Protocol):
    """What the books read, beside what the files take; the store's ``StoredOutcome`` has all of it."""

    @property
    def cached_tokens(self) -> int: ...  # noqa: D102
    @property
    def first_token_seconds(self) -> float: ...  # noqa: D102
    @property
    def total_seconds(self) -> float: ...  # noqa: D102
    @property
    def shard(self) -> int | None: ...  # noqa: D102
    @property
    def committed_at(self) -> float: ...  # noqa: D102


class Tally:
    """Adds up finished rows.

    ``since`` is when this run began, in epoch seconds by the store's clock: rows committed from
    then on are this run's. None: all of them are. Rows that no replica answered count, but neither as
    throughput nor with tokens: those refused while reading the input (``shard`` is None or negative), those
    with the outcome of another row, and expired ones.
    """

    def __init__(self, *, since: float | None = None) -> None:
        self._since = since if since is not None else float("-inf")
        self._rows = 0
        self._tokens = np.zeros(3, dtype=np.int64)
        self._run_rows = self._run_answered = self._run_cut = 0
        self._run_tokens = np.zeros(3, dtype=np.int64)
        self._curve = _Curve()
        self._errors = _Errors()
        self._shared = _Shared()
        self._overflow: Counter[str] = Counter()
        self._latency = Histogram(_LATENCY_UNIT)
        self._first_token = Histogram(_LATENCY_UNIT)
        self._prompt_length = Histogram()
        self._completion_length = Histogram()

    def observe(self, page: Sequence[FinishedRow]) -> None:
        """Count a page of rows; the order of rows and pages does not matter."""
        if not page:
            return
        failed = np.array([row.error_code is not None for row in page])
        tokens = np.array(
            [
                [row.prompt_tokens for row in page],
                [row.cached_tokens for row in page],
                [row.completion_tokens for row in page],
            ],
            dtype=np.int64,
        )
        self._rows += len(page)
        self._overflow.update(mark for row in page if (mark := mark_of(row.response)) is not None)
        computed = self._shared.computed(page, tokens)
        self._tokens += tokens[:, computed].sum(axis=1)
        self._measure_answers(page, tokens, ~failed & computed)
        served = computed
        if failed.any():
            served = computed & np.array([_served(row) for row in page])
            self._errors.add([page[place] for place in np.flatnonzero(failed)])
        ours = self._measure_run(np.array([row.committed_at for row in page]), tokens, failed, served)
        answers = [page[place].response for place in np.flatnonzero(ours & ~failed)]
        self._run_answered += len(answers)
        self._run_cut += sum(answer is not None and was_cut(answer) for answer in answers)

    def snapshot(self) -> Measures:
        """What was counted so far."""
        return Measures(
            rows=self._rows,
            failed=self._errors.count,
            tokens=_tokens(self._tokens),
            run_rows=self._run_rows,
            run_answered=self._run_answered,
            run_cut=self._run_cut,
            run_tokens=_tokens(self._run_tokens),
            bucket_seconds=self._curve.width,
            buckets=self._curve.buckets(),
            latency=self._latency.distribution(),
            first_token=self._first_token.distribution(),
            prompt_length=self._prompt_length.distribution(),
            completion_length=self._completion_length.distribution(),
            errors=self._errors.codes(),
            saved=self._shared.saved(),
            overflow=dict(sorted(self._overflow.items())),
        )

    def _measure_answers(
        self, page: Sequence[FinishedRow], tokens: Ints, answered: npt.NDArray[np.bool_]
    ) -> None:
        first_token = np.array([row.first_token_seconds for row in page])
        self._latency.add(np.array([row.total_seconds for row in page])[answered])
        self._first_token.add(first_token[answered & (first_token > 0)])  # embeddings have none
        self._prompt_length.add(tokens[0][answered])
        self._completion_length.add(tokens[2][answered & (tokens[2] > 0)])

    def _measure_run(
        self, committed: Floats, tokens: Ints, failed: npt.NDArray[np.bool_], served: npt.NDArray[np.bool_]
    ) -> Flags:
        ours = served & (committed >= self._since)
        self._run_rows += int(ours.sum())
        self._run_tokens += tokens[:, ours].sum(axis=1)
        amounts = np.stack([np.ones(len(committed)), failed, tokens[0], tokens[2]])
        self._curve.add(committed[served], amounts[:, served])
        return ours


def _served(row: FinishedRow) -> bool:
    """Whether a replica finished the row."""
    if row.error_code is None:
        return True
    return row.error_code != EXPIRED and row.shard is not None and row.shard >= 0


class _Curve:
    """Amounts over time, in at most 240 buckets that hold something; their width doubles as needed."""

    def __init__(self) -> None:
        self.width = _FIRST_WIDTH
        self._sums: dict[int, Floats] = {}  # bucket number since the epoch: rows, failed, prompt, completion

    def add(self, moments: Floats, amounts: Floats) -> None:
        numbers, places = np.unique(np.floor(moments / self.width).astype(np.int64), return_inverse=True)
        sums = [np.bincount(places, weights=column, minlength=len(numbers)) for column in amounts]
        for number, column in zip(numbers.tolist(), np.stack(sums, axis=1), strict=True):
            self._sums[number] = self._sums[number] + column if number in self._sums else column
        while len(self._sums) > _MOST_BUCKETS:
            self._fold()

    def buckets(self) -> tuple[Bucket, ...]:
        return tuple(
            Bucket(
                start=number * self.width,
                rows=round(float(sums[0])),
                failed=round(float(sums[1])),
                prompt=round(float(sums[2])),
                completion=round(float(sums[3])),
            )
            for number, sums in sorted(self._sums.items())
        )

    def _fold(self) -> None:
        folded: dict[int, Floats] = {}
        for number, sums in self._sums.items():
            folded[number // 2] = folded[number // 2] + sums if number // 2 in folded else sums
        self.width *= 2
        self._sums = folded


class _Shared:
    """Rows that no engine computed: their outcome is another row's, of this job or of an earlier one."""

    def __init__(self) -> None:
        self._rows = np.zeros(2, dtype=np.int64)
        self._tokens = np.zeros(3, dtype=np.int64)

    def computed(self, page: Sequence[FinishedRow], tokens: Ints) -> Flags:
        """Which rows of the page are none of these."""
        places = np.array([0 if row.shard is None else row.shard for row in page], dtype=np.int64)
        shared = places <= FOLLOWED
        if shared.any():
            self._rows += [np.count_nonzero(places == FOLLOWED), np.count_nonzero(places == REUSED)]
            self._tokens += tokens[:, shared].sum(axis=1)
        return ~shared

    def saved(self) -> Saved:
        """What that saved."""
        repeated, reused = self._rows.tolist()
        return Saved(
            repeated=repeated, reused=reused, prompt=int(self._tokens[0]), completion=int(self._tokens[2])
        )


class _Errors:
    """Error rows by code, with the first few rows that met each. Keeps no messages: they may quote."""

    def __init__(self) -> None:
        self.count = 0
        self._codes: dict[str, tuple[int, tuple[str, ...]]] = {}

    def add(self, rows: Sequence[FinishedRow]) -> None:
        self.count += len(rows)
        for row in rows:
            code = row.error_code or _OTHER
            if code not in self._codes and len(self._codes) >= _MOST_CODES:
                code = _OTHER
            count, examples = self._codes.get(code, (0, ()))
            if len(examples) < _EXAMPLES:
                examples = (*examples, row.custom_id if row.custom_id is not None else _place(row))
            self._codes[code] = (count + 1, examples)

    def codes(self) -> tuple[ErrorCode, ...]:
        ordered = sorted(self._codes.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple(
            ErrorCode(code=code, count=count, examples=examples) for code, (count, examples) in ordered
        )


def _place(row: FinishedRow) -> str:
    """Where a row without a custom_id stands: as refusals say it, or its number; both count from 1."""
    found = _PLACE.match(row.error_message or "")
    return f"{found['file'].rpartition('/')[2]} line {found['line']}" if found else f"row {row.index + 1}"


def _tokens(sums: Ints) -> Tokens:
    return Tokens(prompt=int(sums[0]), cached=int(sums[1]), completion=int(sums[2]))
