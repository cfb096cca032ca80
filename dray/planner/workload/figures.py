"""A job's rows in a few numbers: tokens, lengths, shared prefixes. From them the cost model's demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dray.errors import ConfigError
from dray.planner.cost import Demand
from dray.planner.order import order_rows
from dray.planner.rows import RowFacts
from dray.planner.workload.counting import UNBOUNDED
from dray.planner.workload.gathering import Gathered
from dray.planner.workload.reuse import served_in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

CACHES = (16_384, 65_536, 262_144, 1_048_576)
"""Sizes of a prefix cache in tokens for which the share that it serves is given."""

_QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How tokens are spread over rows."""

    mean: float
    median: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What units are in tokens: ``each`` per unit, and ``fixed`` per row, such as those of a chat template.

    ``error``: by which share the tokens of the whole job may be off.
    """

    fixed: float = 0.0
    each: float = 1.0
    error: float = 0.0

    def tokens(self, units: NDArray[Any]) -> NDArray[np.float32]:
        """The tokens of rows by their units; a row without any asks for nothing."""
        scaled = np.maximum(1.0, units.astype(np.float32) * np.float32(self.each) + np.float32(self.fixed))
        return np.where(units > 0, scaled, 0).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a job asks for.

    Args:
        rows: rows that the engine will answer.
        invalid: rows of the input that are no requests.
        refused: requests that the engine will refuse, whatever the model.
        too_long: requests whose prompt, or max_tokens alone, is more than the model takes: error rows, too.
        cut: rows whose max_tokens do not fit behind their prompt; the engine ends their answers there.
        unbounded: rows that say no max_tokens.
        images: images in all rows; each counts as so many tokens as the user said.
        sequences: that the engine runs for a row in the mean: rows may have several prompts, or answers.
        answers: how often it reads each prompt token in the mean: once for each answer.
        input, output: tokens of a row. Outputs are predicted.
        longest_tokens, longest_output: that the longest sequence may have; of rows that nothing bounds,
            as predicted.
        shared: share of the input tokens that a prefix cache serves when rows are ordered by their prefixes.
        groups: prefixes that two rows or more begin with; ``grouped`` rows have one, ``largest`` the same.
        in_input_order: share of the input tokens that a cache serves in the order of the input, by its size
            in tokens.
        input_error, output_error: by which share the means may be off.
        counted: how tokens were counted, in words.
    """

    rows: int
    invalid: int
    refused: int
    too_long: int
    cut: int
    unbounded: int
    images: int
    sequences: float
    answers: float
    input: Spread
    output: Spread
    longest_tokens: float
    longest_output: float
    shared: float
    groups: int
    grouped: int
    largest: int
    in_input_order: dict[int, float]
    input_error: float
    output_error: float
    counted: str

    def demand(self) -> Demand:
        """The demand that the cost model takes.

        Raises:
            ConfigError: there is no row that an engine could answer.
        """
        if not self.rows:
            why = ", ".join(
                f"{number:,} {what}"
                for number, what in (
                    (self.invalid, "are no valid requests"),
                    (self.refused, "are requests that the engine refuses"),
                    (self.too_long, "have a prompt, or max_tokens, of more tokens than the model takes"),
                )
                if number
            )
            raise ConfigError(
                f"there is nothing to plan, as no row can be answered: {why or 'the input has none'}"
            )
        return Demand(
            rows=self.rows,
            input_tokens=max(1.0, self.input.mean),
            output_tokens=max(1.0, self.output.mean),
            hit_share=self.shared,
            longest_tokens=max(2.0, self.longest_tokens),
            longest_output=max(1.0, self.longest_output),
            sequences=self.sequences,
            answers=self.answers,
            output_error=self.output_error,
        )


def workload_of(
    gathered: Gathered,
    *,
    counted: str,
    invalid: int = 0,
    scale: Scale | None = None,
    max_length: int | None = None,
    refused: int | None = None,
    output_error: float = 0.0,
) -> Workload:
    """The figures of rows; ``scale`` where their facts are in other units than tokens.

    ``max_length``: the most tokens that the model takes. ``refused``: where more is known than ``gathered``.
    """
    facts, scale = gathered.facts, scale or Scale()
    prompts = scale.tokens(facts.prompt_tokens)
    longest = scale.tokens(gathered.longest)
    sequences = (gathered.prompts * gathered.answers).astype(np.float32)
    outputs = _outputs(gathered, longest, sequences, max_length)
    fits = (prompts > 0) & outputs.fits
    refused = gathered.refused if refused is None else refused
    too_long = int(np.count_nonzero((prompts > 0) & ~fits))
    rows = max(0, len(gathered) - refused - too_long)
    shared, in_order, sizes = _prefixes(facts, scale, float(prompts.sum(dtype=np.float64)))
    return Workload(
        rows=rows,
        invalid=invalid,
        refused=refused,
        too_long=too_long,
        cut=int(np.count_nonzero(outputs.cut & fits)),
        unbounded=gathered.unbounded,
        images=gathered.images,
        sequences=_mean(sequences[fits]),
        answers=_mean(prompts[fits] * gathered.answers[fits]) / max(_mean(prompts[fits]), 1.0),
        input=_spread(prompts[fits]),
        output=_spread((outputs.predicted * sequences)[fits]),
        longest_tokens=float((longest + outputs.most)[fits].max(initial=0.0)),
        longest_output=float(outputs.most[fits].max(initial=0.0)),
        shared=shared,
        groups=len(sizes),
        grouped=int(sizes.sum()),
        largest=int(sizes.max(initial=0)),
        in_input_order=in_order,
        input_error=scale.error,
        output_error=output_error,
        counted=counted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outputs:
    """What each row's sequences generate: the tokens that are predicted, and the most that there may be.

    ``fits``: the engine takes the row. ``cut``: it ends the answer before max_tokens, at the model's length.
    """

    predicted: NDArray[np.float32]
    most: NDArray[np.float32]
    fits: NDArray[np.bool_]
    cut: NDArray[np.bool_]


def _outputs(
    gathered: Gathered, longest: NDArray[np.float32], sequences: NDArray[np.float32], max_length: int | None
) -> _Outputs:
    """Each row's outputs, by vLLM's rule: a prompt leaves room for a token, and max_tokens alone fit."""
    predicted = np.asarray(gathered.facts.output_tokens) / sequences
    open_ended = np.asarray(gathered.most_output) == UNBOUNDED
    most = np.where(open_ended, predicted, np.asarray(gathered.most_output) / sequences)
    fits, cut = np.ones(len(longest), np.bool_), np.zeros(len(longest), np.bool_)
    if max_length is not None:
        fits = (longest + np.minimum(most, 1) <= max_length) & (open_ended | (most <= max_length))
        room = np.maximum(max_length - longest, np.minimum(most, 1))
        cut = ~open_ended & (most > room)
        most = np.minimum(most, room)
    return _Outputs(predicted=np.minimum(predicted, most), most=most, fits=fits, cut=cut)


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else 1.0


def _spread(values: NDArray[np.float32]) -> Spread:
    if not len(values):
        return Spread(mean=0.0, **dict.fromkeys(_QUANTILES, 0.0))
    found = np.quantile(values, list(_QUANTILES.values()))
    named = dict(zip(_QUANTILES, map(float, found), strict=True))
    return Spread(mean=float(values.mean(dtype=np.float64)), **named)


def _prefixes(
    facts: RowFacts, scale: Scale, total: float
) -> tuple[float, dict[int, float], NDArray[np.int64]]:
    """Shares of the tokens that are served: in the tree's order, and in the input's by the cache's size."""
    order = order_rows(facts)
    sizes = np.diff(np.append(order.group_starts.astype(np.int64), len(facts)))
    if not total:
        return 0.0, dict.fromkeys(CACHES, 0.0), sizes[sizes > 1]
    again = len(facts) - len(sizes)  # rows that have a prefix of another: what is fixed begins it
    shared = min(1.0, (order.shared_tokens * scale.each + again * scale.fixed) / total)
    served = served_in_order(facts, [*(size / scale.each for size in CACHES), np.inf])
    parts = (shared * share / served[-1] if served[-1] else 0.0 for share in served)
    return shared, dict(zip(CACHES, parts, strict=False)), sizes[sizes > 1]
