"""What a finished run tells of later ones: its efficiency, beside what was to be expected before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dray.account import Predicted
from dray.engine.protocol import EngineInfo
from dray.engine.ranks import nodes_of
from dray.errors import ConfigError
from dray.planner.catalogue import known_catalogue
from dray.planner.cost import Demand
from dray.planner.efficiencies import learned, model_key, start_seconds
from dray.planner.measured_run import Setup, forecast, measured_phi, setup_of
from dray.report import Measures
from dray.store import Efficiency, Store

_MOST_CUT = 0.1
"""Share of the answers that may have ended at their limit, where their mean is to tell of whole ones."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run that came to its end: ``identity`` and ``epoch`` are its job's; moments are seconds since 1970.

    ``work``: rows and busy seconds by lane, all on the device of ``info``; ``replicas`` were there in the
    mean. ``nodes`` are their hosts; of a replica over several nodes, the first. ``gpus``: what the user gives
    a replica. ``shape`` looks for what the rows have in common, ``sequences`` for their prompts in the mean,
    and the answers to each.
    """

    identity: str
    epoch: int
    arguments: Mapping[str, Any]
    info: EngineInfo
    work: Mapping[str, tuple[int, float]]
    nodes: frozenset[str]
    replicas: float
    gpus: float | None = None
    began: float
    ready: float
    ended: float
    shape: Callable[[], str | None]
    sequences: Callable[[], tuple[float, float]] = lambda: (1.0, 1.0)

    @property
    def mean_nodes(self) -> float:
        """Nodes that the run had at a time in the mean."""
        return len(self.nodes) * nodes_of(self.arguments) * self.replicas / len(self.work)


def learn(store: Store, run: FinishedRun, measures: Measures) -> Predicted | None:
    """Keep the run's efficiency, and say what the ones before it would have predicted for its rows.

    None where the cost model does not know the model or the hardware, or too little was measured.

    Raises:
        StoreError: it is away.
    """
    if run.gpus is not None and 0 < run.gpus < 1:
        return None  # replicas that share a GPU slow each other down: the rate of one is not the GPU's
    demand, setup = demand_of(measures, *run.sequences()), _setup(run)
    if demand is None or setup is None:
        return None
    device = setup.instance.device
    if device.calibrated and len(run.work) > len(run.nodes):
        return None  # replicas that share a machine's processor each have a part of it
    phi = measured_phi(setup, demand, run.work)
    if phi is None:
        return None
    before = [one for one in store.efficiencies(device.name) if one.job != run.identity]
    predicted, shape = _predicted(run, setup, demand, before), run.shape()
    answered, completion = measures.run_answered, measures.run_tokens.completion
    store.put_efficiency(
        Efficiency(
            job=run.identity,
            epoch=run.epoch,
            model=model_key(setup.model),
            weights=setup.setting.measured_as,
            device=device.name,
            engine=run.info.engine,
            version=run.info.version,
            phi=phi,
            seconds=sum(seconds for _, seconds in run.work.values()),
            rows=sum(rows for rows, _ in run.work.values()),
            start_seconds=max(0.0, run.ready - run.began),
            shape=shape,
            output_tokens=max(1.0, completion / answered) if shape is not None and answered else None,
            cut=measures.run_cut > _MOST_CUT * answered,
        )
    )
    return predicted


def demand_of(measures: Measures, prompts: float, answers: float) -> Demand | None:
    """The rows of a run as the cost model sees them; None where none generated anything.

    A row has so many ``prompts``, and so many ``answers`` to each.
    """
    rows, tokens = measures.run_rows, measures.run_tokens
    if not rows or not tokens.prompt or not tokens.completion:
        return None
    mean_in, mean_out = tokens.prompt / rows, tokens.completion / rows
    sequences = prompts * answers
    longest = max(max(measures.completion_length.high, mean_out) / sequences, 1.0)
    return Demand(
        rows=rows,
        input_tokens=max(mean_in, 1.0),
        output_tokens=max(mean_out, 1.0),
        hit_share=min(1.0, tokens.cached / tokens.prompt),
        longest_output=longest,
        longest_tokens=max(measures.prompt_length.high, mean_in) / prompts + longest,
        sequences=sequences,
        answers=answers,
    )


def _setup(run: FinishedRun) -> Setup | None:
    try:
        catalogue = known_catalogue()
    except ConfigError:
        return None  # a calibration that cannot be read is for `dray plan` to tell
    info = run.info
    return setup_of(
        info.config,
        info.device,
        run.arguments,
        seqs=info.max_num_seqs,
        tokens=info.max_num_batched_tokens or 8192,
        catalogue=catalogue,
    )


def _predicted(
    run: FinishedRun, setup: Setup, demand: Demand, before: Sequence[Efficiency]
) -> Predicted | None:
    """What earlier runs would have said; None where there is none, as the start would be a guess."""
    start = start_seconds(before, setup.instance.device.name)
    if start is None:
        return None
    phi = learned(before, setup.model, version=run.info.version.partition("+")[0])(
        setup.instance.device.name, setup.setting.measured_as
    )
    found = forecast(setup, demand, phi, replicas=run.replicas, start=start)
    return Predicted(
        seconds=found.likely,
        seconds_low=found.low,
        seconds_high=found.high,
        took=run.ended - run.began,
        reason=f"for the tokens that the rows had, with phi {phi.likely:.2f}: {phi.reason}",
    )
