"""Phi and lengths from finished runs: their own figures, weighted by how much each of them measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

from dray.planner.catalogue import Catalogue
from dray.planner.cost import PRIOR, Phi, PhiFor
from dray.planner.cost.demand import MOST_ERROR
from dray.planner.models import ModelFacts
from dray.planner.workload import AtLeast, Learned
from dray.store import Efficiency
from dray.wording import plural

OTHER_VERSION_FACTOR = 1.15
"""Bounds are wider by this where phi is of another engine version: a guess, until such runs are compared."""
OTHER_MODEL_FACTOR = 1.3
"""The same where it is of another model on the same hardware."""

_SHORT_SECONDS, _FEW_ROWS = 10.0, 100.0  # a run of so many seconds or rows counts half
_SPREAD = 0.12  # of the logarithm of phi between jobs of one model on one machine, before any is known
_SPREAD_RUNS = 2.0  # runs that this guess counts as
_LATEST = 30  # runs of a kind
_BOUND = 1.645  # standard deviations on either side: 90%


def model_key(model: ModelFacts) -> str:
    """A model by what decides its speed: two with this in common differ in their weights' values alone."""
    experts = f" {model.experts}e{model.experts_per_token}" if model.experts else ""
    return f"{model.family} {model.layers}x{model.hidden}{experts} {model.parameters}"


def learned(known: Sequence[Efficiency], model: ModelFacts, *, version: str | None = None) -> PhiFor:
    """Phi by device and format of weights, from what runs measured (latest first).

    ``version`` is that of the engine that will run; None where it is not known. Runs of the same model and
    version are taken where there are any, else of another version, else of other models, with wider bounds.
    Where the model was never measured split over devices in this way, runs on one device tell.
    """
    key = model_key(model)

    def phi(device: str, weights: str) -> Phi:
        here = [one for one in known if (one.device, one.weights) == (device, weights)]
        of_split = bool(here)
        if not any(one.model == key for one in here):
            alone = weights.partition(" ")[0]
            there = [one for one in known if (one.device, one.weights) == (device, alone)]
            here, of_split = there or here, of_split and not there
        found = of_runs(here)
        return replace(found, of_split=True) if of_split and not found.assumed else found

    def of_runs(here: Sequence[Efficiency]) -> Phi:
        own = [one for one in here if one.model == key]
        same = [one for one in own if version is None or one.version.partition("+")[0] == version]
        if same:
            return _estimate(same, "of this model")
        if own:
            others = ", ".join(sorted({one.version for one in own}))
            said = f"of engine version {others}, not {version}"
            return _estimate(own, "of this model").widened(OTHER_VERSION_FACTOR, said)
        if here:
            return _estimate(here, "on this hardware").widened(OTHER_MODEL_FACTOR, "of other models")
        return PRIOR

    return phi


def with_starts(catalogue: Catalogue, known: Sequence[Efficiency]) -> Catalogue:
    """The catalogue, its machines at hand with the start that runs on them took, Ray included."""
    for instance in catalogue.instances.values():
        start = start_seconds(known, instance.device.name)
        if start is not None and not instance.boot:
            catalogue = catalogue.with_instance(replace(instance, start_seconds=start))
    return catalogue


def start_seconds(known: Sequence[Efficiency], device: str) -> float | None:
    """The median of the seconds that the latest runs on a device took to be ready; None without any."""
    found = [one.start_seconds for one in known if one.device == device and one.start_seconds is not None]
    latest = sorted(found[:5])
    return latest[len(latest) // 2] if latest else None


@dataclass(frozen=True, slots=True)
class _Weighted:
    value: float
    weight: float


def _estimate(runs: Sequence[Efficiency], whose: str) -> Phi:
    """The weighted mean of the logarithms, and the interval for the next job."""
    points = [_Weighted(log(one.phi), _weight(one)) for one in runs[:_LATEST] if one.phi > 0]
    if sum(point.weight for point in points) <= 0:
        return PRIOR
    mean, bound = _mean(points)
    count = plural(len(points), "run")
    return Phi(
        likely=exp(mean), low=exp(mean - bound), high=exp(mean + bound), reason=f"{count} {whose} measured"
    )


def learned_lengths(
    known: Sequence[Efficiency], model: ModelFacts, shape: str | None
) -> Learned | AtLeast | None:
    """How long the answers of this model were to requests of this shape; None where no run tells.

    Runs whose answers were cut tell only where there are no others, and only how long answers are at least.
    """
    if shape is None:
        return None
    key = model_key(model)
    alike = [one for one in known if one.model == key and one.shape == shape and one.output_tokens]
    whole = [one for one in alike if not one.cut][:_LATEST]
    if not whole:
        least = [one.output_tokens for one in alike[:_LATEST] if one.output_tokens]
        return AtLeast(mean=max(least), jobs=len(least)) if least else None
    mean, bound = _mean([_length(one) for one in whole])
    return Learned(mean=exp(mean), error=min(MOST_ERROR, exp(bound) - 1.0), jobs=len(whole))


def _length(one: Efficiency) -> _Weighted:
    return _Weighted(log(one.output_tokens or 1.0), one.rows / (one.rows + _FEW_ROWS))


def _mean(points: Sequence[_Weighted]) -> tuple[float, float]:
    """The weighted mean, and by how much the next one may be off."""
    total = sum(point.weight for point in points)
    mean = sum(point.weight * point.value for point in points) / total
    squares = sum(point.weight * (point.value - mean) ** 2 for point in points)
    variance = (_SPREAD_RUNS * _SPREAD**2 + squares) / (_SPREAD_RUNS + total)
    return mean, _BOUND * sqrt(variance * (1 + 1 / total))


def _weight(one: Efficiency) -> float:
    """Near 1 for a long run of many rows, near 0 for a short one."""
    return one.seconds / (one.seconds + _SHORT_SECONDS) * one.rows / (one.rows + _FEW_ROWS)
