"""A job's workload from its rows: all of them by the tokenizer, or all by their bytes and some by tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dray.errors import ConfigError
from dray.planner.workload.encoders import UNIT_BYTES, Bytes, TokenizerAt
from dray.planner.workload.figures import Scale, Workload, workload_of
from dray.planner.workload.gathering import Gathered, gather
from dray.planner.workload.images import IMAGE_TOKENS
from dray.planner.workload.lengths import AtLeast, Lengths
from dray.planner.workload.sampling import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_ROWS = 2000
"""Rows that are tokenized where not all are: that gives the mean to some tenths of a percent."""

_BLOCK_UNITS = 12
"""Units of a block, where rows are counted by bytes: 12 to 18 tokens, at 1 to 1.5 for each."""

_BYTES_ERROR = 0.35
"""Of 4 bytes per token: tokenizers of 2024 to 2026 have 3 to 5 in text, code and other scripts apart."""
_LEAST_ERROR = 0.01
_SURE = 1.96  # standard errors on either side of 95%
_BOUNDED_ERROR, _UNBOUNDED_ERROR = 0.5, 0.9
"""By how much outputs may be off that are bounded by max_tokens alone, or by nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How the rows are to be counted. ``sample`` None: every row by the tokenizer.

    ``tokenizer`` None: there is none, for the reason ``missing``. ``max_length`` is the most tokens that the
    model takes. Each image counts as ``image_tokens``.
    """

    tokenizer: TokenizerAt | None
    missing: str = ""
    sample: int | None = SAMPLE_ROWS
    max_length: int | None = None
    lengths: Lengths | None = None
    output_error: float | None = None
    processes: int | None = None
    image_tokens: int = IMAGE_TOKENS


def estimate(lines: Iterable[bytes], how: Counting) -> tuple[Workload, tuple[str, ...]]:
    """The workload of all rows, and what to say of its figures.

    Raises:
        InputError: the input cannot be read.
    """
    if how.tokenizer is not None and (missing := how.tokenizer.missing()) is not None:
        how = replace(how, tokenizer=None, missing=missing)
    if how.tokenizer is not None and how.sample is None:
        try:
            return _whole(lines, how, how.tokenizer, "every row by the model's tokenizer")
        except ConfigError as error:
            how = _without_tokenizer(how, error)
    sample = Sample(lines, 0 if how.tokenizer is None else how.sample or SAMPLE_ROWS)
    units = gather(
        sample, Bytes(image_tokens=how.image_tokens), block_tokens=_BLOCK_UNITS, lengths=how.lengths
    )
    try:
        if how.tokenizer is not None:
            try:
                return _by_sample(units, sample, how, how.tokenizer, _invalid(lines))
            except ConfigError as error:
                how = _without_tokenizer(how, error)
        scale = Scale(error=_BYTES_ERROR)
        notes = (f"Tokens are guessed from bytes, {UNIT_BYTES} for each: {how.missing}",)
        counted = f"every row by its bytes, {UNIT_BYTES} per token"
        return _figures(units, how, counted, _invalid(lines), scale=scale), notes
    finally:
        units.close()


def _without_tokenizer(how: Counting, error: ConfigError) -> Counting:
    return replace(how, tokenizer=None, missing=str(error))


def _invalid(lines: Iterable[bytes]) -> int:
    return int(getattr(lines, "invalid", 0))


def _whole(
    lines: Iterable[bytes], how: Counting, tokenizer: TokenizerAt, counted: str
) -> tuple[Workload, tuple[str, ...]]:
    gathered = gather(lines, tokenizer, lengths=how.lengths, processes=how.processes)
    try:
        return _figures(gathered, how, counted, _invalid(lines)), ()
    finally:
        gathered.close()


def _by_sample(
    units: Gathered, sample: Sample, how: Counting, tokenizer: TokenizerAt, invalid: int
) -> tuple[Workload, tuple[str, ...]]:
    exact = gather(sample.kept.values(), tokenizer, lengths=how.lengths, processes=how.processes)
    try:
        if sample.is_whole:
            return _figures(exact, how, "every row by the model's tokenizer", invalid), ()
        rows = np.fromiter(sample.kept, np.int64, len(sample.kept))
        scale = fitted(units.facts.prompt_tokens[rows], exact.facts.prompt_tokens)
        refused = round(max(units.refused, exact.refused / len(exact) * len(units)))
        counted = f"every row by its bytes, and {len(exact):,} of them by the model's tokenizer"
        return _figures(units, how, counted, invalid, scale=scale, refused=refused), ()
    finally:
        exact.close()


def _figures(gathered: Gathered, how: Counting, counted: str, invalid: int, **known: Any) -> Workload:
    found = workload_of(
        gathered,
        counted=counted,
        invalid=invalid,
        max_length=how.max_length,
        output_error=_output_error(gathered) if how.output_error is None else how.output_error,
        **known,
    )
    if isinstance(how.lengths, AtLeast):
        error = how.lengths.error(found.output.mean, found.output_error, _open_ended_error(gathered))
        found = replace(found, output_error=error)
    return found


def _output_error(gathered: Gathered) -> float:
    """The error of the output's length, weighted by rows: those that generate all they may are known."""
    rows = max(1, len(gathered) - gathered.refused)
    bounded = rows - gathered.exact - gathered.unbounded
    return max(0.0, bounded * _BOUNDED_ERROR / rows + _open_ended_error(gathered))


def _open_ended_error(gathered: Gathered) -> float:
    """What of it is of the rows that nothing bounds."""
    return gathered.unbounded * _UNBOUNDED_ERROR / max(1, len(gathered) - gathered.refused)


def fitted(units: NDArray[Any], tokens: NDArray[Any]) -> Scale:
    """The line through units and tokens of some rows that comes nearest, and how sure the mean is."""
    asks = (units > 0) & (tokens > 0)
    if not asks.any():
        return Scale()
    x, y = units[asks].astype(np.float64), tokens[asks].astype(np.float64)
    each, fixed = y.mean() / x.mean(), 0.0
    if x.std() > 0.01 * x.mean():
        slope = float(np.cov(x, y, bias=True)[0, 1] / x.var())
        if slope > 0 and y.mean() - slope * x.mean() >= 0:
            each, fixed = slope, y.mean() - slope * x.mean()
    off = float((y - fixed - each * x).std()) / np.sqrt(len(x)) / y.mean()
    return Scale(fixed=float(fixed), each=float(each), error=float(_SURE * off) + _LEAST_ERROR)
