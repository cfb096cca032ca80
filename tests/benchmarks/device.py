"""Does the device wait for its host? dray, vLLM and Ray Data LLM on a device that is a clock.

::

    python -m tests.benchmarks.device              four settings, three rounds: an hour
    python -m tests.benchmarks.device --quick      600 rows, one round
    python -m tests.benchmarks.device --only limit dray --settings 1b

The device (`pretended_device.py`) takes its time for a step and no core; all else is real. A device that
never waits answers the ideal number of rows a second, and shares are of that. `limit` is `LLM.generate` with
its engine core in a process of its own. Each run is a process of its own; the rounds are interleaved.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import processes, results, workload
from tests.benchmarks.contestants import Work
from tests.benchmarks.cores import CoresWatch
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, spread
from tests.benchmarks.rounds import rounds

ROWS = 6000
TOKENS = 64
MAX_MODEL_LEN = 1024
_MODULE = "tests.benchmarks.contestants"
_DEVICE = "tests.benchmarks.pretended_device.PretendedDevice"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A device, and what it is asked."""

    name: str
    about: str
    step_ms: float
    prefill_us: float
    sequences: int
    words: int
    kind: str = "completion"
    constrained: bool = False

    def ideal(self, prompt_tokens: float) -> float:
        """Rows a second of a device that never waits."""
        step, prefill = self.step_ms / 1e3, self.prefill_us / 1e6
        return 1 / (TOKENS / self.sequences * step + prompt_tokens * prefill)


SETTINGS = (
    Setting(name="long", about="long prompts", step_ms=12, prefill_us=20, sequences=256, words=52),
    Setting(name="1b", about="a model of 1B", step_ms=10, prefill_us=5, sequences=512, words=26),
    Setting(name="8b", about="a model of 8B in fp8", step_ms=25, prefill_us=20, sequences=1024, words=16),
    Setting(name="schema", about="chats with a JSON schema", step_ms=10, prefill_us=5, sequences=512,
            words=26, kind="chat", constrained=True),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Something to measure. ``replicas`` share the machine."""

    name: str
    core_apart: bool = True
    batch_size: int = 0
    replicas: int = 1

    @property
    def is_dray(self) -> bool:
        """Whether it is a whole `dray run`."""
        return self.name.startswith("dray")


CONTESTANTS = (
    Contestant(name="limit"),
    Contestant(name="limit-inside", core_apart=False),
    Contestant(name="replica"),
    Contestant(name="replica-inside", core_apart=False),
    Contestant(name="dray"),
    Contestant(name="dray-inside", core_apart=False),
    Contestant(name="dray-twice", replicas=2),
    Contestant(name="ray-data-64", batch_size=64),
    Contestant(name="ray-data-256", batch_size=256),
)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run: rows a second, their share of the ideal of one device, and the cores that worked meanwhile."""

    setting: str
    name: str
    rate: float
    share: float
    cores: float
    left: int


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="device")
    with workload.workspace(arguments.folder) as folder:
        measures = _Bench(folder, arguments, report).rounds()
    report.raw = [asdict(measure) for measure in measures]
    report.tables = [_table(measures)]
    report.targets = [] if arguments.quick else _targets(measures)
    report.notes = _notes(arguments)
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    names, settings = [one.name for one in CONTESTANTS], [one.name for one in SETTINGS]
    parser.add_argument("--rows", type=int, default=None, help=f"of a run ({ROWS})")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--settings", nargs="+", choices=settings, default=settings)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one process may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    if arguments.smoke:
        arguments.only, arguments.settings = ["replica"], ["schema"]
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.rows = arguments.rows or (100 if arguments.smoke else 600 if arguments.quick else ROWS)
    return arguments


def _told(measure: Measure) -> str:
    return f"{measure.rate:.0f} rows/s, {measure.share:.2f} of the ideal"


class _Bench:
    """The folder, the model and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._model = folder / workload.MODEL_NAME
        self._environment = workload.isolated(folder / "prefect")
        self._runs = 0
        processes.run(
            [sys.executable, "-m", "tests.support.tiny_model", self._model],
            timeout=300,
            environment=self._environment,
        )
        self._settings = [one for one in SETTINGS if one.name in arguments.settings]
        self._contestants = [one for one in CONTESTANTS if one.name in arguments.only]
        for one in self._settings:
            workload.write_batch(self._input(one), one.kind, arguments.rows, TOKENS, words=one.words,
                                 constrained=one.constrained)  # fmt: skip
        self._prompt_tokens = {one.name: self._mean_tokens(one) for one in self._settings}

    def rounds(self) -> list[Measure]:
        """All runs."""
        runs = [
            (f"{setting.name}, {contestant.name}", (setting, contestant))
            for setting in self._settings
            for contestant in self._contestants
            if not (contestant.batch_size and setting.constrained)
        ]
        return rounds(runs, self._arguments.repeats, self._report, lambda run: self._measure(*run), _told)

    def _measure(self, setting: Setting, contestant: Contestant) -> Measure:
        environment = self._environment | {
            "PRETENDED_STEP_MS": str(setting.step_ms),
            "PRETENDED_PREFILL_US": str(setting.prefill_us),
        }
        work = self._work(setting, contestant)
        path = work.save(self._folder / f"work-{self._runs}.json")
        command = _dray(work, contestant) if contestant.is_dray else _module(contestant, path)
        with CoresWatch() as cores:
            done = processes.run(command, timeout=self._arguments.timeout, environment=environment)
        result: dict[str, Any] = done.result()
        if contestant.is_dray:
            seconds, rows = result["seconds"]["inference"], result["counts"]["done"]
        else:
            seconds, rows = result["seconds"], result["rows"]
        if rows != self._arguments.rows:
            raise RunError(f"gave {rows} rows of {self._arguments.rows}")
        rate = rows / seconds
        ideal = setting.ideal(self._prompt_tokens[setting.name])
        return Measure(
            setting=setting.name,
            name=contestant.name,
            rate=rate,
            share=rate / ideal,
            cores=cores.busiest(0.8 * seconds),
            left=done.left,
        )

    def _input(self, setting: Setting) -> Path:
        return self._folder / f"{setting.name}.jsonl"

    def _mean_tokens(self, setting: Setting) -> float:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._model)
        texts: list[Any] = workload.prompts(100, words=setting.words)
        if setting.kind == "chat":
            texts = [
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                )
                for text in texts
            ]
        return sum(len(tokenizer(text)["input_ids"]) for text in texts) / len(texts)

    def _work(self, setting: Setting, contestant: Contestant) -> Work:
        self._runs += 1
        given = {
            "max_num_seqs": setting.sequences,
            "max_num_batched_tokens": 8192,
            "enable_prefix_caching": False,
            "distributed_executor_backend": _DEVICE,
        }
        engine = {"model": str(self._model), "max_model_len": MAX_MODEL_LEN, "enforce_eager": True,
                  "dtype": "float32", "kv_cache_memory_bytes": 4 << 30}  # fmt: skip
        place = {"engine_core": "apart" if contestant.core_apart else "inside"}
        return Work(
            model=str(self._model),
            kind=setting.kind,
            rows=self._arguments.rows,
            tokens=TOKENS,
            max_model_len=MAX_MODEL_LEN,
            input=str(self._input(setting)),
            output=str(self._folder / f"out-{self._runs}"),
            given=given | place,
            arguments=engine | given,
            words=setting.words,
            constrained=setting.constrained,
            core_apart=contestant.core_apart,
            batch_size=contestant.batch_size,
            ray_folder=str(self._folder / "ray"),
        )


def _module(contestant: Contestant, path: Path) -> list[str | Path]:
    name = contestant.name.removesuffix("-inside").removesuffix("-64").removesuffix("-256")
    return [sys.executable, "-m", _MODULE, name, path]


def _dray(work: Work, contestant: Contestant) -> list[str | Path]:
    options: list[str] = []
    for name, value in (work.given | {"max_model_len": work.max_model_len}).items():
        options += ["--engine-arg", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return workload.dray_run(
        work.input, "--model", work.model, "--output", work.output,
        "--replicas", str(contestant.replicas), *options,
    )  # fmt: skip


def _groups(measures: Sequence[Measure]) -> dict[tuple[str, str], list[Measure]]:
    groups: dict[tuple[str, str], list[Measure]] = defaultdict(list)
    for measure in measures:
        groups[measure.setting, measure.name].append(measure)
    return groups


def _table(measures: Sequence[Measure]) -> Table:
    about = {setting.name: setting.about for setting in SETTINGS}
    cells = [
        [about[setting], name, spread([run.rate for run in runs]), spread([run.share for run in runs]),
         spread([run.cores for run in runs]), str(len(runs)), str(max(run.left for run in runs) or "")]
        for (setting, name), runs in _groups(measures).items()
    ]  # fmt: skip
    header = ("device", "what", "rows/s", "share of the ideal", "cores busy", "runs", "processes left")
    return Table(title="How much of a device is used", header=header, rows=cells)


def _targets(measures: Sequence[Measure]) -> list[Target]:
    rates = {key: median([run.rate for run in runs]) for key, runs in _groups(measures).items()}
    found: list[Target] = []

    def ratio(setting: str, above: float | None, below: float | None, of: str, bound: float) -> None:
        if above and below:
            found.append(Target(name=f"{setting}: {of}", value=above / below, bound=bound))

    for setting in SETTINGS:
        name = setting.name
        dray = rates.get((name, "dray"))
        peers = [rates[name, peer] for peer in ("ray-data-64", "ray-data-256") if (name, peer) in rates]
        ratio(setting.about, dray, rates.get((name, "limit")), "dray / LLM.generate, core apart", 0.95)
        ratio(setting.about, dray, max(peers, default=None), "dray / Ray Data LLM", 1.5)
        ratio(setting.about, rates.get((name, "dray-twice")), dray, "two replicas / one", 1.8)
    return found


def _notes(arguments: argparse.Namespace) -> list[str]:
    devices = "; ".join(
        f"{one.about}: {one.step_ms:g} ms a step, {one.prefill_us:g} us a prompt token, "
        f"{one.sequences} sequences"
        for one in SETTINGS
    )
    return [
        f"Devices: {devices}.",
        f"{arguments.rows:,} rows, {TOKENS} tokens out each, no prefix cache, 8,192 tokens a step at most.",
        "`limit` is `LLM.generate` (`LLM.chat`) after a warm-up, its engine core in a process of its own; "
        "`replica` is dray's replica without Ray; `dray` is `seconds.inference` of `dray run --json`, with "
        "every commit in it. `-inside`: with the engine core in the same process.",
        "`dray-twice`: two replicas, each with a device of its own, on the same cores; the share is of one "
        "device's ideal.",
        "`cores busy`: cores of the machine that worked in the busiest 80% of the measured seconds, mean.",
        "Ray Data LLM: its engine core in a process of its own, as vLLM has it; its rate runs from the first "
        "request that reaches its engine to the last row out of it.",
    ]


if __name__ == "__main__":
    sys.exit(main())
