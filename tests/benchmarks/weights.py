"""Weights from an object store into shared memory and parameters: dray beside the limits, and beside others.

::

    python -m tests.benchmarks.weights --record                2 GB in four files, three rounds
    python -m tests.benchmarks.weights --gigabytes 0.25 --repeats 1 --only memcpy ranged dray runai
    python -m tests.benchmarks.weights --through-vllm          an engine's start instead: process to ready

Every contestant runs in a process of its own, into memory that was not its own before, one after the other;
the rounds are interleaved (A B C A B C ...). The server is on this machine's loopback and shares its cores:
figures are limits of the machine, not of a network. ``--only`` takes families (``runai``) and single
contestants (``runai-16``).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from dray.weights.node.cache import evict
from dray.weights.node.places import CACHE_VARIABLE, HUGE_VARIABLE, CacheRoot
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, number, say, spread
from tests.benchmarks.weights_contestants import (
    BUCKET,
    CONTESTANTS,
    PREFIX,
    RANGE,
    S3,
    URI,
    WARMED,
    Work,
    size_of,
    warm,
)
from tests.support.s3_emulator import EmulatorProcess

SHARED = Path("/dev/shm")
PEERS = Path(".build/benchmarks/peers")
RUNAI = ("runai-model-streamer==0.17.0", "runai-model-streamer-s3==0.17.1")
SHARE_OF_SINK = 0.8  # what is asked of dray, checksums and all
_LAYER = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
_LAYER_BYTES = 121.6e6
SMOKE_GIGABYTES = 0.12  # one layer


# -- the rounds ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Something to measure: a function of this module with settings, in an environment.

    ``best_of``: the family whose best setting so far it takes. ``behaviour`` is the server's meanwhile.
    """

    name: str
    family: str
    function: str
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    behaviour: dict[str, Any] = field(default_factory=dict)
    tls: bool = False
    best_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run; ``cpu`` counts processor seconds with all children, ``served`` bytes that the server sent."""

    name: str
    family: str
    seconds: float
    cpu: float
    bytes: int
    served: int
    parts: dict[str, Any]

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.bytes / self.seconds


def contestants() -> list[Contestant]:
    """Everybody, in the order of a round."""
    small = {HUGE_VARIABLE: "0"}
    shapes = [{"processes": 2, "threads": threads} for threads in (2, 4)]
    found = [
        Contestant(name="memcpy", family="memcpy", function="memcpy"),
        Contestant(name="memcpy-4k", family="memcpy-4k", function="memcpy", environment=small),
        *_variants("sink", "sink", shapes),
        *_variants("ranged", "ranged", shapes),
        Contestant(name="dray", family="dray", function="dray"),
        Contestant(name="dray-4k", family="dray-4k", function="dray", environment=small),
        *_variants("ranged-tls", "ranged", shapes, tls=True),
        Contestant(name="dray-tls", family="dray-tls", function="dray", tls=True),
        *(_runai_contestant(f"runai-{count}", count) for count in (1, 4, 8, 16, 32)),
        _runai_contestant("runai-1-of-16", 1, 2 * RANGE),
        *_variants("obstore", "obstore", [{"concurrency": count} for count in (4, 8, 16)]),
        *_variants("boto3", "boto3", [{"concurrency": count} for count in (8, 16)]),
    ]
    loads = [("dray-load", None), ("runai-load", "runai"), ("boto3-load", "boto3")]
    return found + [
        Contestant(name=name, family=name, function=name.replace("-", "_"), best_of=best)
        for name, best in loads
    ]


def _variants(family: str, function: str, settings: list[dict[str, Any]], **more: Any) -> list[Contestant]:
    return [
        Contestant(
            name=f"{family}-{'x'.join(map(str, one.values()))}",
            family=family,
            function=function,
            settings=one,
            **more,
        )
        for one in settings
    ]


def _runai_contestant(name: str, concurrency: int, chunk: int = RANGE) -> Contestant:
    environment = runai_environment(concurrency, chunk)
    return Contestant(name=name, family="runai", function="runai", environment=environment)


def runai_environment(concurrency: int, chunk: int = RANGE) -> dict[str, str]:
    """The streamer's settings for a store like the emulator; ``chunk`` in bytes."""
    return {
        "RUNAI_STREAMER_CONCURRENCY": str(concurrency),
        "RUNAI_STREAMER_MEMORY_LIMIT": "-1",
        "RUNAI_STREAMER_CHUNK_BYTESIZE": str(chunk),
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }


class Bench:
    """The servers, the folders, and how one contestant is run."""

    def __init__(self, folder: Path, gigabytes: float, files: int, timeout: float) -> None:
        self.folder = folder
        self.timeout = timeout
        self._gigabytes, self._files = gigabytes, files
        self._stack = ExitStack()
        self._servers: dict[bool, EmulatorProcess] = {}

    def __enter__(self) -> Bench:
        try:
            shared = tempfile.TemporaryDirectory(dir=SHARED, prefix="dray-bench-")
            self.root = Path(self._stack.enter_context(shared))
            self.memory = SHARED / f"{self.root.name}-memory"
            self._stack.callback(clear, self.memory)
            self.origin = self.root / BUCKET / PREFIX
            say(f"writing {self._gigabytes:g} GB")
            write_model(self.origin, self._gigabytes, self._files)
        except BaseException:
            self._stack.close()
            raise
        self.size = size_of(self.origin)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def server(self, *, tls: bool = False) -> EmulatorProcess:
        """The one that speaks TLS, or the plain one; started at its first use."""
        if tls not in self._servers:
            # Two processes: no contestant waits because one thread of Python serves them all.
            self._servers[tls] = EmulatorProcess(self.root, processes=2, tls=tls)
            self._stack.callback(self._servers[tls].stop)
        return self._servers[tls]

    def run(self, contestant: Contestant) -> Measure:
        """Measure it once.

        Raises:
            RunError: it failed.
        """
        server = self.server(tls=contestant.tls)
        server.behave(**contestant.behaviour)
        disk = self.folder / "disk"
        disk.mkdir()
        work = Work(
            origin=str(self.origin),
            url=server.url,
            uri=URI,
            memory=str(self.memory),
            disk=str(disk),
            settings=contestant.settings,
        )
        path = self.folder / "work.json"
        path.write_bytes(orjson.dumps(asdict(work)))
        command = [sys.executable, "-m", "tests.benchmarks.weights", "--contestant", contestant.function]
        if contestant.function.startswith("vllm"):
            warm(int(WARMED * self.size))  # the others do it themselves
        environment = self.environment(server, contestant)
        try:
            done = processes.run([*command, "--work", path], timeout=self.timeout, environment=environment)
            figures = done.result()
            ready = next((line.seconds for line in done.out if line.text == "ready"), None)
        finally:
            shutil.rmtree(disk)
            clear(self.memory)
        served = sum(size for name, size in server.served().items() if name.endswith(".safetensors"))
        return _measure(contestant, figures, ready, served, self.size)

    def environment(self, server: EmulatorProcess, contestant: Contestant) -> dict[str, str]:
        """Of a contestant's process: the store, and caches that no other program shares."""
        found = workload.isolated(self.folder / "prefect") | {
            CACHE_VARIABLE: str(self.memory),
            "XDG_CACHE_HOME": str(self.folder / "cache"),  # what engines keep there is warm from the 2nd on
            "VLLM_ASSETS_CACHE": str(self.folder / "disk"),
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        found["PYTHONPATH"] += f":{PEERS.absolute()}"
        if contestant.tls:
            found |= dict.fromkeys(("SSL_CERT_FILE", "AWS_CA_BUNDLE"), str(server.certificate))
        return found | contestant.environment


def _measure(
    contestant: Contestant, figures: dict[str, Any], ready: float | None, served: int, size: int
) -> Measure:
    """``ready`` counts from the start of the process, and then nothing else does."""
    if ready is None and figures["bytes"] < 0.999 * size:  # headers do not count with everybody
        raise RunError(f"{figures['bytes']:,} bytes, of a model of {size:,}")
    known = ("seconds", "cpu", "bytes")
    return Measure(
        name=contestant.name,
        family=contestant.family,
        seconds=figures["seconds"] if ready is None else ready,
        cpu=figures.get("cpu", 0.0),
        bytes=size,
        served=served,
        parts={name: value for name, value in figures.items() if name not in known},
    )


def clear(memory: Path) -> None:
    """Nothing stays of what a contestant left in shared memory: no file, no mount."""
    if not memory.is_dir():
        return
    shutil.rmtree(memory / "sink", ignore_errors=True)
    evict(CacheRoot(root=memory, memory=True))
    while os.path.ismount(memory):  # somebody may still look at it, or have mounted there too
        subprocess.run(["umount", "--lazy", str(memory)], check=True)
    shutil.rmtree(memory, ignore_errors=True)


def write_model(folder: Path, gigabytes: float, files: int) -> Path:
    """A Llama of about that size in bfloat16 with a tokenizer, and its published manifest."""
    from dray.weights.source.publish import publish
    from tests.support.checkpoints import Stored, _llama_shapes, write_shards
    from tests.support.tiny_model import write_tiny_model

    write_tiny_model(folder)
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    layers = max(1, round(gigabytes * 1e9 / _LAYER_BYTES))
    config |= _LAYER | {"head_dim": 64, "num_hidden_layers": layers, "dtype": "bfloat16"}
    config |= {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    block, shards, at = _numbers(), [{} for _ in range(files)], 0  # type: ignore[var-annotated]
    shapes = _llama_shapes(config)
    total = 2 * sum(map(math.prod, shapes.values()))
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        data = (block * (size // len(block) + 1))[:size]
        shards[min(at * files // total, files - 1)][name] = Stored("BF16", shape, data)
        at += size
    write_shards(folder, shards)
    publish(str(folder))
    return folder


def _numbers() -> bytes:
    """Two million small weights in bfloat16, the upper half of a float32."""
    import numpy as np

    numbers = np.random.default_rng(0).normal(0, 0.02, 1 << 21).astype(np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def install_peers() -> None:
    """Run:ai's streamer, where the environment does not have it."""
    known = importlib.util.find_spec("runai_model_streamer")
    if known is None and not (PEERS / "runai_model_streamer").is_dir():
        command = [sys.executable, "-m", "uv", "pip", "install", "--compile-bytecode", "--no-deps"]
        subprocess.run([*command, "--target", str(PEERS), *RUNAI], check=True)


def main() -> int:
    """Measure as the arguments say; or, with ``--contestant``, be measured."""
    arguments = parse()
    if arguments.contestant:
        work = Work(**orjson.loads(arguments.work.read_bytes()))
        print(orjson.dumps(CONTESTANTS[arguments.contestant](work)).decode(), flush=True)
        return 0
    engines = arguments.through_vllm
    chosen = _engines(arguments.concurrency, arguments.like_s3) if engines else _chosen(arguments.only)
    if any("runai" in one.name for one in chosen):
        install_peers()
    report = Report(name=_name(arguments))
    with (
        workload.workspace(arguments.folder) as folder,
        Bench(folder, arguments.gigabytes, arguments.files, arguments.timeout) as bench,
    ):
        measures = rounds(bench, chosen, arguments.repeats, report)
    report.raw = [asdict(measure) for measure in measures]
    (_report_engines if engines else _report_ladder)(report, measures)
    return results.publish(report, arguments)


def _name(arguments: argparse.Namespace) -> str:
    if not arguments.through_vllm:
        return "weights"
    return "weights-vllm-s3" if arguments.like_s3 else "weights-vllm"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--gigabytes", type=float, default=None, help="of the model (2)")
    parser.add_argument("--files", type=int, default=4, help="that the model is in")
    parser.add_argument("--only", nargs="+", default=None, help="contestants, or families of them")
    parser.add_argument(
        "--like-s3", action="store_true", help="with --through-vllm: from a store that behaves as S3 does"
    )
    parser.add_argument(
        "--through-vllm", action="store_true", help="an engine's start, beside vLLM's own way"
    )
    parser.add_argument("--concurrency", type=int, default=1, help="of Run:ai's streamer through vLLM")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one process may take")
    parser.add_argument("--contestant", choices=sorted(CONTESTANTS), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    _chosen(arguments.only)  # so that a wrong name is told before anything is prepared
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    if arguments.smoke:
        arguments.gigabytes, arguments.only = SMOKE_GIGABYTES, ["dray", "dray-load"]
    arguments.gigabytes = arguments.gigabytes or (0.25 if arguments.quick else 2.0)
    return arguments


def _chosen(names: Sequence[str] | None) -> list[Contestant]:
    found = [one for one in contestants() if names is None or {one.name, one.family} & set(names)]
    unknown = set(names or ()) - {name for one in found for name in (one.name, one.family)}
    if unknown:
        sys.exit(f"no contestant {', '.join(sorted(unknown))}")
    return found


def _engines(concurrency: int, like_s3: bool) -> list[Contestant]:
    behaviour = S3 if like_s3 else {}
    return [
        engine("vllm-dray", behaviour=behaviour),
        engine("vllm-runai", behaviour=behaviour, environment=runai_environment(concurrency)),
        engine("vllm-local"),
    ]


def engine(name: str, **more: Any) -> Contestant:
    """One of the engines."""
    return Contestant(name=name, family=name, function=name.replace("-", "_"), **more)


def rounds(bench: Bench, chosen: Sequence[Contestant], repeats: int, report: Report) -> list[Measure]:
    """Everybody in turn, as often as asked."""
    measures: list[Measure] = []
    if any(one.function.startswith("vllm") for one in chosen):
        say("an engine that does not count: it fills vLLM's own caches")
        bench.run(engine("vllm-local"))
    for repeat in range(repeats):
        for contestant in chosen:
            label = f"round {repeat + 1}: {contestant.name}"
            try:
                measures.append(bench.run(_set(contestant, measures)))
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            one = measures[-1]
            say(f"{label}: {one.seconds:.2f} s, {one.rate / 1e9:.2f} GB/s, {one.cpu:.2f} CPU s")
    return measures


def _set(contestant: Contestant, measures: Sequence[Measure]) -> Contestant:
    """The contestant with the settings that were best so far, where it takes those of a family."""
    if contestant.best_of is None:
        return contestant
    family = [one for one in contestants() if one.family == contestant.best_of]
    best = _best(measures, contestant.best_of)
    model = next((one for one in family if one.name == best), family[len(family) // 2])
    return replace(contestant, settings=model.settings, environment=model.environment)


def _best(measures: Sequence[Measure], family: str) -> str | None:
    """The name of the family's fastest, by medians."""
    rates = {name: median(found) for name, found in _rates(measures, family).items()}
    return max(rates, key=lambda name: rates[name]) if rates else None


def _rates(measures: Sequence[Measure], family: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in measures:
        if one.family == family:
            found[one.name].append(one.rate)
    return found


# -- what is said of it ----------------------------------------------------------------------------

_WHAT = {
    "memcpy": "memcpy into fresh shared memory, a thread for each core",
    "memcpy-4k": "the same on a mount with 4 KiB pages",
    "sink": "raw sink: ranges received and thrown away",
    "ranged": "ranged sink: received into fresh shared memory, no checks",
    "dray": "dray, whole: checksums of the published manifest",
    "dray-4k": "the same on a mount with 4 KiB pages",
    "ranged-tls": "ranged sink over TLS",
    "dray-tls": "dray over TLS",
    "runai": "Run:ai streamer, tensors dropped",
    "obstore": "obstore, ranges into one buffer",
    "boto3": "boto3 to disk, then load_file (maps the files)",
    "dray-load": "dray and its loader, into parameters",
    "runai-load": "Run:ai streamer as vLLM uses it, into parameters",
    "boto3-load": "boto3 to disk and load_file, into parameters",
}


def _report_ladder(report: Report, measures: Sequence[Measure]) -> None:
    families = [family for family in _WHAT if _rates(measures, family)]
    limit = _rate(measures, "ranged")
    rows = [_row(measures, family, limit) for family in families]
    header = ("what", "GB/s", "of the ranged sink", "CPU s/GB", "sent / model", "best setting", "runs")
    report.tables = [Table(title=_title(measures), header=header, rows=rows)]
    several = [(f, n) for f in families for n in _rates(measures, f) if len(_rates(measures, f)) > 1]
    settings = [
        [name, spread(_each(measures, name, "rate", 1e-9)), _cpu(measures, name)] for _, name in several
    ]
    if settings:
        report.tables.append(Table(title="All settings", header=("what", "GB/s", "CPU s/GB"), rows=settings))
    loads = [family for family in families if family.endswith("-load")]
    first = [[_WHAT[f], spread([m.parts["first"] for m in measures if m.family == f])] for f in loads]
    if first:
        report.tables.append(
            Table(title="Into parameters", header=("what", "first tensor after, s"), rows=first)
        )
    report.targets = _targets(measures)
    report.notes = [*_NOTES, _versions()]


def _row(measures: Sequence[Measure], family: str, limit: float) -> list[str]:
    name = _best(measures, family) or family
    runs = [one for one in measures if one.name == name]
    return [
        _WHAT[family],
        spread(_each(measures, name, "rate", 1e-9)),
        number(median([one.rate for one in runs]) / limit) if limit else "-",
        _cpu(measures, name),
        number(max(one.served / one.bytes for one in runs)),
        name.removeprefix(f"{family}-") if name != family else "",
        str(len(runs)),
    ]


def _rate(measures: Sequence[Measure], family: str) -> float:
    """The median of the family's fastest, in bytes/s; 0 where it did not run."""
    name = _best(measures, family)
    return median(_rates(measures, family)[name]) if name else 0.0


def _each(measures: Sequence[Measure], name: str, figure: str, factor: float = 1.0) -> list[float]:
    return [getattr(one, figure) * factor for one in measures if one.name == name]


def _cpu(measures: Sequence[Measure], name: str) -> str:
    return spread([one.cpu / one.bytes * 1e9 for one in measures if one.name == name])


def _title(measures: Sequence[Measure]) -> str:
    return f"{measures[0].bytes / 1e9:.2f} GB over loopback" if measures else "nothing was measured"


def _targets(measures: Sequence[Measure]) -> list[Target]:
    asked = [
        ("dray / ranged sink", "dray", "ranged", SHARE_OF_SINK),
        ("dray over TLS / ranged sink over TLS", "dray-tls", "ranged-tls", None),
        ("dray into parameters / ranged sink", "dray-load", "ranged", None),
        ("dray / Run:ai streamer", "dray", "runai", None),
        ("dray into parameters / Run:ai streamer as vLLM uses it", "dray-load", "runai-load", None),
        ("dray into parameters / boto3 and load_file", "dray-load", "boto3-load", None),
    ]
    return [
        Target(name=name, value=_rate(measures, above) / _rate(measures, below), bound=bound)
        for name, above, below, bound in asked
        if _rate(measures, above) and _rate(measures, below)
    ]


_NOTES = [
    "Figures are medians, with min..max over the rounds; rounds are interleaved, each run is a process of "
    "its own, and ratios are of medians. Of several settings the one with the fastest median counts.",
    "The emulator serves from /dev/shm with two processes on the same cores: its own work is in nobody's CPU "
    "seconds, but in everybody's seconds. CPU seconds are user and system time, child processes included. "
    "Listing and imports are in neither; requests for headers, and the start of dray's fetch processes, are.",
    "Memory is new to each contestant, but not to this machine: each touches as much and frees it before the "
    "clock starts, since a virtual machine's host may take seconds a GB to hand out memory again.",
    "Fresh shared memory is what dray uses: a tmpfs of its own with huge pages where it may mount one.",
    "The sinks are 2 processes with 2 or 4 threads, raw sockets, ranges of 8 MiB. Run:ai: concurrency 1 to "
    "32, chunks of 8 MiB (and 16), memory unlimited. obstore: ranges of 8 MiB, 4 to 16 at once, into fresh "
    "private memory. boto3: `max_concurrency` 8 and 16, parts of 8 MiB, one file after the other.",
    "Into parameters: every tensor is copied into an empty parameter, as vLLM's load on CPU does; Run:ai's "
    "are cloned before, as its adapter in vLLM does, at the setting that was best in the rounds so far.",
]


def _versions() -> str:
    names = ("obstore", "boto3", "safetensors", "blake3")
    return ", ".join([*RUNAI, *(f"{name}=={importlib.metadata.version(name)}" for name in names)]) + "."


def _report_engines(report: Report, measures: Sequence[Measure]) -> None:
    names = list(dict.fromkeys(one.name for one in measures))
    parts = list(dict.fromkeys(part for one in measures for part in one.parts["parts"]))
    rows = [
        [
            _ENGINES[name],
            spread(_each(measures, name, "seconds")),
            *[
                spread([one.parts["parts"].get(part, 0.0) for one in measures if one.name == name])
                for part in parts
            ],
            number(max(one.served / one.bytes for one in measures if one.name == name)),
        ]
        for name in names
    ]
    header = ("what", "from process start to ready, s", *parts, "sent / model")
    size = f"{measures[0].bytes / 1e9:.2f} GB" if measures else ""
    report.tables = [Table(title=f"An engine's start with a model of {size}", header=header, rows=rows)]
    answers = {one.parts["answer"] for one in measures}
    if len(answers) > 1:
        report.failures.append(f"the engines answer differently: {sorted(answers)}")
    report.targets = [
        Target(
            name=f"ready with dray / {_ENGINES[name]}",
            value=median(_each(measures, "vllm-dray", "seconds")) / median(_each(measures, name, "seconds")),
            at_least=False,
        )
        for name in names
        if name != "vllm-dray" and "vllm-dray" in names
    ]
    report.notes = [
        "Medians with min..max of interleaved rounds. All have the same engine arguments (CPU, in process, "
        "eager, bfloat16, 256 tokens of context, 64 MiB of key-value cache), a process of their own, and "
        "nothing of the model on the node before; then all answered the same prompt, alike.",
        "Run:ai through vLLM: `load_format=runai_streamer`, `model=s3://...`, chunks of 8 MiB, memory "
        f"unlimited ({', '.join(RUNAI)}).",
    ]


_ENGINES = {
    "vllm-dray": "dray",
    "vllm-runai": "vLLM with Run:ai",
    "vllm-local": "a local folder in memory",
}


if __name__ == "__main__":
    sys.exit(main())
