"""Static beside continuous batching, on the same requests, as the lengths of outputs vary more and more.

::

    python -m tests.benchmarks.batching              two devices, one round: ten minutes
    python -m tests.benchmarks.batching --quick      fewer requests
    python -m tests.benchmarks.batching --devices clock

Static: a batch of as many requests as the engine has places, and the next one when its last answer is there.
Continuous: vLLM fills a place once it is free, as it does for `dray run`. The mean length is the same in all
shapes, so the tokens are, too; `ignore_eos` and `max_tokens` make the lengths exact. Then requests come one
by one (Poisson), up to the rate that continuous batching can do, and the time until their answers is taken.

`cpu`: vLLM's CPU backend and a tiny model, where a step with more sequences takes longer. `clock`: a device
that takes the same time for each step (`pretended_device.py`), nearer to a GPU that decodes.

Not measured: a batch call beside a server's endpoint on two GPUs (tensor parallelism of two). It needs the
GPUs: on a CPU, clients and the server's HTTP would share the cores with the model, and be what is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks import processes, results, workload
from tests.benchmarks.batching_engine import WORDS, Asked
from tests.benchmarks.batching_lengths import MEAN, SHAPES, gain_in_steps, variation
from tests.benchmarks.batching_picture import Line, Panel, picture
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, number, say, spread

PICTURE = Path(__file__).parents[2] / "docs/images/batching.svg"
STEP_MS = 5.0
DEVICES: dict[str, str | None] = {
    "clock": "tests.benchmarks.pretended_device.PretendedDevice",
    "cpu": None,
}
_ARRIVING = "lognormal 0.9"
_ALL = Asked(
    model="",
    device=None,
    places=16,
    rows=320,
    coming=128,
    repeats=1,
    shapes=[shape.name for shape in SHAPES],
    shape_of_arrivals=_ARRIVING,
    shares=(0.25, 0.5, 0.75, 1.0),
)
_QUICK = replace(_ALL, rows=128, coming=64, repeats=1, shares=(0.3, 0.8))
_SMOKE = replace(_QUICK, places=4, rows=16, shapes=["constant", _ARRIVING], shares=())
_SMALL_MODEL = Path(__file__).parents[2] / "examples/tickets/model"


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One shape on one device: requests a second of both ways, and what steps alone say of the gain."""

    device: str
    shape: str
    variation: float
    static: Sequence[float]
    continuous: Sequence[float]
    in_steps: float

    @property
    def name(self) -> str:
        """As tables and tests call it."""
        return f"{self.device}, {self.shape}"

    @property
    def gain(self) -> float:
        """How many times as fast continuous batching is."""
        return median(self.continuous) / median(self.static)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Seconds until answers while requests come at ``rate``, which is ``share`` of what the device can do."""

    device: str
    policy: str
    share: float
    rate: float
    median: float
    p95: float


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="batching")
    with workload.workspace(arguments.folder) as folder:
        gains, waits = _measured(folder, arguments, report)
    report.raw = [{**asdict(one), "name": one.name, "gain": one.gain} for one in gains]
    report.raw += [{**asdict(one), "name": f"{one.device}, {one.policy}"} for one in waits]
    report.tables = [_gain_table(gains)] + ([_wait_table(waits)] if waits else [])
    report.targets = [] if arguments.smoke else targets(gains, waits)
    report.notes = _notes(arguments.asked)
    if arguments.record:
        PICTURE.write_text(picture(_panels(gains, waits)))
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--devices", nargs="+", choices=list(DEVICES), default=None)
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one device may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.devices = arguments.devices or (["clock"] if arguments.smoke else list(DEVICES))
    arguments.asked = _SMOKE if arguments.smoke else _QUICK if arguments.quick else _ALL
    if arguments.repeats:
        arguments.asked = replace(arguments.asked, repeats=arguments.repeats)
    return arguments


def _measured(folder: Path, arguments: argparse.Namespace, report: Report) -> tuple[list[Gain], list[Wait]]:
    """Each device in a process of its own; one that fails is noted, and the other goes on."""
    environment = workload.isolated(folder / "prefect")
    environment |= {"PRETENDED_STEP_MS": str(STEP_MS), "PRETENDED_PREFILL_US": "0"}
    model = _SMALL_MODEL if arguments.smoke else folder / workload.MODEL_NAME
    if not arguments.smoke:
        say("preparing the model")
        writer: list[str | Path] = [sys.executable, "-m", "tests.support.tiny_model", model]
        written = processes.run(writer, timeout=300, environment=environment)
        if written.code != 0:
            written.result()
    gains, waits = [], []
    for device in arguments.devices:
        say(f"{device}: static and continuous batches")
        asked: Asked = replace(arguments.asked, model=str(model), device=DEVICES[device])
        path = asked.save(folder / f"{device}.json")
        command: list[str | Path] = [sys.executable, "-m", "tests.benchmarks.batching_engine", path]
        try:
            done = processes.run(command, timeout=arguments.timeout, environment=environment)
            found: dict[str, Any] = done.result()
        except RunError as error:
            report.failures.append(f"{device}: {error}")
            say(f"{device}: FAILED")
            continue
        gains += _gains(device, asked, found["throughputs"])
        waits += [Wait(device=device, **one) for one in found["latencies"]]
        say(f"{device}: {', '.join(f'{one.shape} {one.gain:.2f}' for one in gains if one.device == device)}")
    return gains, waits


def _gains(device: str, asked: Asked, throughputs: Sequence[dict[str, Any]]) -> list[Gain]:
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in throughputs:
        rates[one["shape"], one["policy"]].append(one["rate"])
    found = []
    for shape in SHAPES:
        if shape.name in asked.shapes:
            lengths = shape.lengths(asked.rows)
            found.append(
                Gain(
                    device=device,
                    shape=shape.name,
                    variation=variation(lengths),
                    static=rates[shape.name, "static"],
                    continuous=rates[shape.name, "continuous"],
                    in_steps=gain_in_steps(lengths, asked.places),
                )
            )
    return found


def targets(gains: Sequence[Gain], waits: Sequence[Wait]) -> list[Target]:
    """The gain grows with the variation; nothing is lost without one; waits are shorter at every rate."""
    found = []
    for device in dict.fromkeys(one.device for one in gains):
        mine = [one for one in gains if one.device == device]
        steps = [later.gain / earlier.gain for earlier, later in pairwise(mine)]
        if steps:
            name = f"{device}: gain over that of the next smaller variation, smallest"
            found.append(Target(name=name, value=min(steps), bound=1.0))
        name = f"{device}: gain of lengths that are all the same"
        found.append(Target(name=name, value=mine[0].gain, bound=0.95))
        name = f"{device}: gain of the lengths that vary most"
        found.append(Target(name=name, value=mine[-1].gain, bound=2.0))
        if device == "clock":
            away = max(abs(one.gain / one.in_steps - 1) for one in mine)
            name = f"{device}: most that a gain is away from what steps alone say"
            found.append(Target(name=name, value=away, bound=0.15, at_least=False))
        found += _waiting(device, waits)
    return found


def _waiting(device: str, waits: Sequence[Wait]) -> list[Target]:
    times = {(one.share, one.policy): one for one in waits if one.device == device}
    shares = sorted({share for share, _ in times})
    if not shares:
        return []
    least = min(times[share, "static"].p95 / times[share, "continuous"].p95 for share in shares)
    name = f"{device}: p95 of static over p95 of continuous, smallest of all rates"
    return [Target(name=name, value=least, bound=1.0)]


def _gain_table(gains: Sequence[Gain]) -> Table:
    header = (
        *("device", "lengths", "their deviation / mean", "static, requests/s", "continuous, requests/s"),
        *("times as fast", "by steps alone"),
    )
    rows = [
        [
            one.device, one.shape, number(one.variation), spread(one.static), spread(one.continuous),
            number(one.gain), number(one.in_steps),
        ]
        for one in gains
    ]  # fmt: skip
    return Table(title="The same requests in static and in continuous batches", header=header, rows=rows)


def _wait_table(waits: Sequence[Wait]) -> Table:
    times: dict[tuple[str, float], dict[str, Wait]] = defaultdict(dict)
    for one in waits:
        times[one.device, one.share][one.policy] = one
    header = (
        *("device", "of the top rate", "requests/s", "static: median, s", "p95, s"),
        *("continuous: median, s", "p95, s"),
    )
    rows = [
        [
            device, f"{share:.0%}", number(found["static"].rate),
            *[number(value) for policy in ("static", "continuous")
              for value in (found[policy].median, found[policy].p95)],
        ]
        for (device, share), found in times.items()
    ]  # fmt: skip
    return Table(title="From the moment a request comes to its answer", header=header, rows=rows)


def _panels(gains: Sequence[Gain], waits: Sequence[Wait]) -> list[Panel]:
    devices = list(dict.fromkeys(one.device for one in gains))
    growing = [
        Line(
            name=name,
            points=[(one.variation, one.gain) for one in gains if one.device == name],
            colour=number,
        )
        for number, name in enumerate(devices)
    ]
    steps = [(one.variation, one.in_steps) for one in gains if one.device == devices[0]]
    growing.append(Line(name="by steps alone", points=steps, colour=len(devices), dashed=True))
    panels = [
        Panel(
            title="Continuous over static batches, times as fast",
            across="standard deviation of output lengths / mean",
            lines=growing,
        )
    ]
    for device in dict.fromkeys(one.device for one in waits):
        lines = [
            Line(
                name=f"{policy}, {figure}",
                points=[
                    (one.rate, getattr(one, figure))
                    for one in waits
                    if (one.device, one.policy) == (device, policy)
                ],
                colour=number,
                dashed=figure == "median",
            )
            for number, policy in enumerate(("static", "continuous"))
            for figure in ("p95", "median")
        ]
        title = f"Seconds until an answer, {device}"
        panels.append(Panel(title=title, across="requests that come in a second", lines=lines))
    return panels


def _notes(asked: Asked) -> list[str]:
    notes = [
        f"{asked.rows} requests, {MEAN} tokens out in the mean and {10 * MEAN} at most, prompts of {WORDS} "
        f"words, {asked.places} places, no prefix cache. Rounds are interleaved.",
        f"clock: {STEP_MS:g} ms for each step, whatever is in it. cpu: the tiny model on vLLM's CPU backend.",
        "By steps alone: the sum of the longest of each batch, over the steps of places that are filled at "
        "once. Lengths come in a random order; `dray run` would begin the longest ones first.",
    ]
    if asked.shares:
        notes.append(
            f"Answers: {asked.coming} requests come (Poisson, {asked.shape_of_arrivals}). The top rate is "
            "what continuous batching did with all requests at once. A static batch takes what waits, and "
            "answers when it is done."
        )
    return notes


if __name__ == "__main__":
    sys.exit(main())
