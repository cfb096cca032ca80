"""Seconds of a run: cold start, work, tail, interruptions."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from dray.planner.cost.demand import Demand
from dray.planner.cost.memory import batch_size
from dray.planner.cost.step import ModelledReplica, StepTime, step_time

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Seconds from the order of a machine to its first request: ``fixed``, and weights at ``load`` bytes/s.

    Published for optimised starts: 75 s for an 8B model, 107 s for 70B.
    The line through both, with 9.1 and 72.7
    GB of fp8 weights. Plain starts take 10 to 12 minutes. A machine that runs already pays for the start
    of the engine alone; its 30 s are a guess until a run was measured.
    """

    fixed: float = 70.4
    load: float = 1.99e9
    engine: float = 30.0

    def seconds(self, weight_bytes: float, *, boot: bool) -> float:
        """Seconds for weights of this size; ``boot``: the machine has to be started."""
        return (self.fixed if boot else self.engine) + weight_bytes / self.load


COLD_START = ColdStart()

_COMMIT_SECONDS = 0.05
"""Of one commit: sets how much work is at stake between two of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One replica before phi: ``batch`` requests at a time, ``per_second`` finished in the steady state.

    ``tail``: seconds by which the last requests outlast the work that they still hold.
    """

    batch: float
    step: StepTime
    per_second: float
    tail: float


def replica_rate(replica: ModelledReplica, demand: Demand, batch: float | None = None) -> Rate:
    """X = B / (O · T_step) with ``batch`` requests at a time, or else as many as the replica holds."""
    if batch is None:
        batch = batch_size(replica.model, replica.device, replica.setting, demand)
    step = step_time(replica, demand, batch)
    rate = batch / (demand.output_tokens * step.total)
    return Rate(batch=batch, step=step, per_second=rate, tail=tail_seconds(replica, demand, batch, rate))


def tail_seconds(replica: ModelledReplica, demand: Demand, batch: float, rate: float) -> float:
    """Seconds by which the last requests outlast the work that they still hold.

    When no request is left to come, the longest one may have its whole output before it, at the steps of a
    half-empty batch. Half of the batch's work remains then, and counts as work already.
    """
    drain = demand.tail_output * step_time(replica, demand, batch / 2, decode_only=True).total
    return max(0.0, drain - batch / 2 / rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Wall seconds of a run by phase. ``total`` is their sum."""

    cold_start: float
    work: float
    tail: float
    interrupted: float

    @property
    def total(self) -> float:
        """Seconds from the order of the machines to the last result."""
        return self.cold_start + self.work + self.tail + self.interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What is uncertain: phi, interruptions per hour, and outputs and start over the expected ones."""

    phi: float
    interruptions_per_hour: float
    output_factor: float = 1.0
    start_factor: float = 1.0


def run_time(demand: Demand, rate: Rate, *, rows: int, cold: float, given: Conditions) -> RunTime:
    """T = t_cold + N / (R·X) + T_tail, and the share of interruptions, for a replica that gets ``rows``."""
    slowdown = given.output_factor / given.phi
    cold *= given.start_factor
    work = rows / rate.per_second * slowdown
    tail = rate.tail * slowdown
    latency = demand.output_tokens * rate.step.total * slowdown
    share = interruption_share(given.interruptions_per_hour, cold, latency)
    return RunTime(cold_start=cold, work=work, tail=tail, interrupted=share * (work + tail))


def interruption_share(per_hour: float, cold_start: float, latency: float) -> float:
    """Omega = lambda · (t_cold + t_lost): what interruptions add to the time of the work.

    Lost is the shorter one of half a request's latency and half of Young's interval between commits,
    sqrt(2·C/lambda) (CACM 17(9), 1974).
    """
    rate = per_hour / _HOUR
    return rate * cold_start + min(rate * latency / 2, sqrt(2 * _COMMIT_SECONDS * rate) / 2)


def rows_of_replica(rows: int, replicas: int) -> int:
    """The most rows that one of the replicas gets."""
    return ceil(rows / replicas)
