"""How near forecasts come: what a job was predicted to take before it ran, and what it took.

::

    python -m tests.benchmarks.forecast
    python -m tests.benchmarks.forecast --quick      three jobs
    python -m tests.benchmarks.forecast --only device

`machine`: this machine is calibrated (`dray doctor --calibrate`), and one pilot runs. Then each of ten jobs
is planned by `dray plan`'s own code, from its input alone, and run by `dray run`. The jobs differ in rows,
lengths of prompts and outputs, shared prefixes, kind, and sequences at a time. Each run is learned from.

A run beside which other processes took more than a tenth of the cores is run again, up to three times, and
nothing is learned from it; the least disturbed one counts, and the table says by how much it was.

`device`: a device that is a clock (`pretended_device.py`) is an entry of the catalogue with its known speed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from dray.cli.calibrating import measured_with
from dray.job_plan.job_plan import Known, plan_job
from dray.job_plan.request import PlanRequest
from dray.planner.calibrating import Calibration, calibration_of
from dray.planner.catalogue import Measured, calibrated, known_catalogue, save
from dray.planner.catalogue.saved import FOLDER_VARIABLE
from dray.planner.cost import Demand, Plan, Setting
from dray.planner.measured_run import Setup, expected_seconds
from dray.planner.models import read_model
from dray.store import Efficiency, open_store
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say

PARTS = ("machine", "device")
MODEL = Path(__file__).parents[2] / "examples/tickets/model"
DEVICE = "tests.benchmarks.pretended_device.PretendedDevice"  # its module imports vLLM
_TIMEOUT = 600.0
_DISTURBED = 0.1
"""Share of the cores that others may take beside a run that is to say something of forecasts."""
_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class Job:
    """``rows`` requests of about ``words`` words; ten rows each share the first ``shared``; ``out`` tokens.

    ``spread``: outputs are from ``out`` to ``spread`` times as many tokens. ``seqs``: max_num_seqs.
    """

    name: str
    rows: int
    words: int
    out: int
    shared: int = 0
    spread: int = 1
    seqs: int = 256
    kind: str = "completion"


PILOT = Job(name="pilot", rows=1500, words=30, out=32)
JOBS = (
    Job(name="short prompts, short outputs", rows=4000, words=10, out=8),
    Job(name="classification", rows=3000, words=60, out=2),
    Job(name="as the pilot, three times the rows", rows=4500, words=30, out=32),
    Job(name="long outputs", rows=800, words=20, out=160),
    Job(name="long prompts", rows=1500, words=200, out=8),
    Job(name="shared prefixes", rows=2000, words=200, out=16, shared=170),
    Job(name="outputs of many lengths", rows=1500, words=30, out=16, spread=8),
    Job(name="64 sequences at a time", rows=2000, words=30, out=32, seqs=64),
    Job(name="few rows", rows=300, words=30, out=64),
    Job(name="chat", rows=2500, words=40, out=24, kind="chat"),
)
DEVICES = (
    # milliseconds a step, microseconds a prompt token, and the job
    (12.0, 20.0, Job(name="12 ms a step", rows=2000, words=30, out=32, seqs=64)),
    (20.0, 0.0, Job(name="20 ms a step, prompts for nothing", rows=1500, words=60, out=48, seqs=64)),
    (8.0, 60.0, Job(name="8 ms a step, 60 us a prompt token", rows=1500, words=100, out=24, seqs=64)),
)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One job: seconds that were predicted, with their interval, and that it took; of them, the start.

    ``others`` is the share of the cores that processes of others took meanwhile.
    """

    name: str
    predicted: float
    low: float
    high: float
    took: float
    start: float
    phi: float
    bill: dict[str, Any]
    others: float

    @property
    def error(self) -> float:
        """By what share the prediction was off."""
        return self.predicted / self.took - 1.0

    @property
    def inside(self) -> bool:
        """Whether it took what the interval says."""
        return self.low <= self.took <= self.high


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="forecast")
    with workload.workspace(arguments.folder) as folder:
        if "machine" in arguments.only:
            _machine(arguments, folder, report)
        if "device" in arguments.only:
            _device(arguments, folder, report)
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args(argv)
    if arguments.smoke:
        arguments.only = ["device"]
    arguments.jobs = 0 if arguments.smoke else 3 if arguments.quick else len(JOBS)
    return arguments


# -- this machine ---------------------------------------------------------------------------------


def _machine(arguments: argparse.Namespace, folder: Path, report: Report) -> None:
    """Calibrate, run the pilot, then plan and run each job."""
    os.environ[FOLDER_VARIABLE] = str(folder / "hardware")  # the user's own calibrations stay as they are
    calibration = _calibrate()
    bench = Bench(folder=folder, machine=calibration.measured.name)
    measures: list[Measure] = []
    for number, job in enumerate((PILOT, *JOBS[: arguments.jobs])):
        label = f"{number} of {arguments.jobs}: {job.name}"
        try:
            planned = bench.plan(job)
            result, others = bench.run(job)
        except RunError as error:
            report.failures.append(f"{label}: {error}")
            say(f"{label}: FAILED")
            continue
        measure = _compared(job, planned, result, others)
        say(
            f"{label}: predicted {measure.predicted:.1f} s ({measure.low:.1f} to {measure.high:.1f}), "
            f"took {measure.took:.1f} s: {measure.error:+.0%}; others took {others:.0%} of the cores"
        )
        if job is not PILOT:
            measures.append(measure)
    report.raw += [asdict(one) | {"error": one.error, "inside": one.inside} for one in measures]
    report.tables.append(_table(measures))
    errors = [abs(one.error) for one in measures]
    report.targets += [
        Target(name="median error of ten jobs", value=median(errors), bound=0.15, at_least=False),
        Target(name="share of jobs inside the interval", value=_inside(measures), bound=0.8),
        Target(
            name="parts of the bill beside its total, micro-dollars",
            value=float(max((_gap(one.bill) for one in measures), default=0)),
            bound=0.0,
            at_least=False,
        ),
    ]
    host = calibration.measured
    report.notes.append(
        f"Calibrated: {calibration.probes} kinds of requests, off by {calibration.error:.1%} in the median. "
        f"Beside the model's work a step takes {host.step * 1e3:.2f} ms, a sampled token "
        f"{host.sampled * 1e6:.0f} us, a prompt token {host.prompt * 1e6:.0f} us."
    )


def _calibrate() -> Calibration:
    say("calibrating this machine")
    found = measured_with(str(MODEL))
    calibration = calibration_of(found, day=datetime.now(UTC).date(), dollars_per_hour=0.5)
    save(calibration.measured)
    say(f"calibrated: {calibration.measured.name}, off by {calibration.error:.1%} in the median")
    return calibration


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Plans and runs jobs on one machine, with one store."""

    folder: Path
    machine: str
    disturbed: list[tuple[float, float]] = field(default_factory=list)  # moments of runs that were

    def plan(self, job: Job) -> Plan:
        """As ``dray plan`` does it, with the settings that the run will have."""
        found = plan_job(
            PlanRequest.of(
                input=str(self._input(job)),
                model=str(MODEL),
                hardware=[self.machine],
                sample=0,
            ),
            known=Known(runs=self._runs(), catalogue=known_catalogue()),
        )
        fitting = [one for one in found.found.plans if one.setting.max_num_seqs == job.seqs]
        if not fitting:
            raise RunError(f"no plan with {job.seqs} sequences: {found.why}")
        return min(fitting, key=lambda one: abs(one.setting.max_num_batched_tokens - 2048))

    def run(self, job: Job) -> tuple[dict[str, Any], float]:
        """``dray run`` with the plan's settings, until it is undisturbed; and the share that others took."""
        found: list[tuple[float, dict[str, Any]]] = []
        for attempt in range(_ATTEMPTS):
            began = time.time()
            result, others = self._run(job, f"{_slug(job)}-{attempt}")
            found.append((others, result))
            if others <= _DISTURBED:
                break
            self.disturbed.append((began, time.time()))
            say(f"{job.name}: others took {others:.0%} of the cores meanwhile")
        others, result = min(found, key=lambda one: one[0])
        return result, others

    def _run(self, job: Job, name: str) -> tuple[dict[str, Any], float]:
        command = workload.dray_run(
            self._input(job), "--model", MODEL, "--output", self.folder / f"out-{name}",
            "--store", self._store, "--price", "0.5", "--job-id", name,
            "--model-name", workload.MODEL_NAME,
            "--engine-arg", f"max_num_seqs={job.seqs}", "--engine-arg", "max_num_batched_tokens=2048",
        )  # fmt: skip
        environment = workload.isolated(self.folder / "prefect")
        environment[FOLDER_VARIABLE] = str(self.folder / "hardware")
        return _watched(command, environment)

    def _runs(self) -> list[Efficiency]:
        if not (self.folder / "runs.db").exists():
            return []
        with open_store(self._store) as store:
            found = store.efficiencies()
        return [one for one in found if not any(a <= one.measured_at <= b for a, b in self.disturbed)]

    @property
    def _store(self) -> str:
        return f"sqlite:///{self.folder / 'runs.db'}"

    def _input(self, job: Job) -> Path:
        path = self.folder / f"{_slug(job)}.jsonl"
        return path if path.exists() else write_job(path, job)


def write_job(path: Path, job: Job) -> Path:
    """The job's requests in OpenAI's batch format; rows that share a prefix stand together."""
    rng = random.Random(job.name)  # a text seeds the same each time
    own = workload.prompts(job.rows, seed=rng.randrange(2**31), words=job.words - job.shared)
    prefixes = workload.prompts(job.rows // 10 + 1, seed=rng.randrange(2**31), words=max(job.shared, 1))
    with path.open("wb") as file:
        for index, text in enumerate(own):
            prompt = f"{prefixes[index // 10]} {text}" if job.shared else text
            body = workload.body(prompt, job.kind, rng.randint(job.out, job.out * job.spread))
            line = {"custom_id": f"r{index}", "method": "POST", "url": workload.URLS[job.kind], "body": body}
            file.write(orjson.dumps(line) + b"\n")
    return path


def _slug(job: Job) -> str:
    return re.sub(r"[^a-z0-9]+", "-", job.name.lower())


def _watched(command: list[str | Path], environment: dict[str, str]) -> tuple[dict[str, Any], float]:
    """Run it; what it printed, and the share of the cores that processes of others took meanwhile."""
    before = _busy_seconds()
    done = processes.run(command, timeout=_TIMEOUT, environment=environment)
    busy = _busy_seconds() - before
    own = sum(seconds for _, seconds in done.processor)
    return dict(done.result()), max(0.0, busy - own) / ((os.cpu_count() or 1) * done.seconds)


def _busy_seconds() -> float:
    """Processor seconds of all processes of the machine: proc(5), without idle and steal."""
    fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields[index] for index in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def _compared(job: Job, planned: Plan, result: dict[str, Any], others: float) -> Measure:
    seconds = result["seconds"]
    return Measure(
        name=job.name,
        predicted=planned.seconds.likely,
        low=planned.seconds.low,
        high=planned.seconds.high,
        took=seconds["total"],
        start=seconds["total"] - seconds["inference"] - seconds["finalise"],
        phi=planned.phi.likely,
        bill=result["cost"],
        others=others,
    )


# -- a device of known speed --------------------------------------------------------------------------


def _device(arguments: argparse.Namespace, folder: Path, report: Report) -> None:
    """Predict what a clock takes, and run it. The start is left out: it is the machine's own."""
    measures = []
    for step, prompt, full in DEVICES[: 1 if arguments.smoke or arguments.quick else None]:
        job = replace(full, rows=300) if arguments.smoke else full
        try:
            result, predicted, others = _run_device(folder, job, step, prompt)
        except RunError as error:
            report.failures.append(f"{job.name}: {error}")
            continue
        measures.append(
            Measure(
                name=job.name,
                predicted=predicted,
                low=predicted / 1.1,
                high=predicted * 1.1,
                took=result["seconds"]["inference"],
                start=result["seconds"]["total"] - result["seconds"]["inference"],
                phi=1.0,
                bill=result["cost"],
                others=others,
            )
        )
        say(f"{job.name}: predicted {predicted:.1f} s, took {measures[-1].took:.1f} s")
    report.raw += [asdict(one) | {"error": one.error, "inside": one.inside} for one in measures]
    report.tables.append(_table(measures, title="A device of known speed, from the first ready replica on"))
    report.targets.append(
        Target(
            name="largest error on a device of known speed",
            value=max((abs(one.error) for one in measures), default=1.0),
            bound=0.1,
            at_least=False,
        )
    )


def _run_device(folder: Path, job: Job, step: float, prompt: float) -> tuple[dict[str, Any], float, float]:
    """What the run says, the seconds that the cost model gives for its tokens, and what others took."""
    path = write_job(folder / f"device-{_slug(job)}.jsonl", job)
    command = workload.dray_run(
        path, "--model", MODEL, "--output", folder / f"out-{path.stem}", "--price", "2.10",
        "--model-name", workload.MODEL_NAME, "--replicas", "1",
        "--engine-arg", f"distributed_executor_backend={DEVICE}",
        "--engine-arg", f"max_num_seqs={job.seqs}", "--engine-arg", "enable_prefix_caching=false",
        "--engine-arg", "engine_core=apart",  # as on a GPU: the host's work is done while the device works
    )  # fmt: skip
    environment = workload.isolated(folder / "prefect")
    environment |= {"PRETENDED_STEP_MS": str(step), "PRETENDED_PREFILL_US": str(prompt)}
    result, others = _watched(command, environment)
    entry = calibrated(
        Measured(
            name=DEVICE,
            gemm={"bf16": 1e18, "fp32": 1e18},
            bandwidth=1e18,
            memory=64e9,
            step=step / 1e3,
            prompt=prompt / 1e6,
            day=datetime.now(UTC).date(),
        )
    )
    tokens: dict[str, int] = result["tokens"]
    demand = Demand(
        rows=job.rows,
        input_tokens=tokens["prompt"] / job.rows,
        output_tokens=tokens["completion"] / job.rows,
        longest_output=job.out * job.spread,
    )
    setup = Setup(
        model=read_model(MODEL),
        instance=entry,
        setting=Setting(max_num_seqs=job.seqs, max_num_batched_tokens=8192),
    )
    return result, expected_seconds(setup, demand, job.rows), others


# -- tables ---------------------------------------------------------------------------------------------


def _table(measures: Sequence[Measure], title: str = "Ten jobs after calibration and one pilot") -> Table:
    return Table(
        title=title,
        header=(
            "job",
            "predicted",
            "interval",
            "took",
            "of it, start",
            "off by",
            "inside",
            "dollars",
            "others",
        ),
        rows=[
            [
                one.name,
                f"{one.predicted:.1f} s",
                f"{one.low:.1f} to {one.high:.1f} s",
                f"{one.took:.1f} s",
                f"{one.start:.1f} s",
                f"{one.error:+.0%}",
                "yes" if one.inside else "no",
                f"{one.bill['dollars']:.5f}",
                f"{one.others:.0%}",
            ]
            for one in measures
        ],
    )


def _inside(measures: Sequence[Measure]) -> float:
    return sum(one.inside for one in measures) / len(measures) if measures else 0.0


def _gap(bill: dict[str, Any]) -> int:
    """Micro-dollars and microseconds by which the parts of a bill miss its totals: there are none."""
    dollars = round(bill["dollars"] * 1e6) - sum(round(part * 1e6) for part in bill["parts"].values())
    seconds = round(bill["node_seconds"] * 1e6) - sum(round(part * 1e6) for part in bill["seconds"].values())
    return int(abs(dollars) + abs(seconds))


if __name__ == "__main__":
    sys.exit(main())
