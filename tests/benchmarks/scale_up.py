"""How soon replicas serve a model from an object store: on a warm node, and on four nodes at once.

::

    python -m tests.benchmarks.scale_up                  1 GB, 50 MB/s for all nodes together, three rounds
    python -m tests.benchmarks.scale_up --rate 200e6

`cold`: the first job on a node. `warm`: the next one, which finds the weights in the node's memory. `four
nodes`: four replicas of one job, each on a node with nothing of the model. `plain`: four engines at a time,
each of which reads the store by itself, as vLLM does (Run:ai's streamer).

Seconds run from the moment at which the driver asks Ray for a replica to its first token; of four, from the
first that was asked for to the last token that came. For `plain`, from the start of its processes to the last
engine that is ready, so without a request. Nodes are Ray nodes on this machine: they share its cores, so that
imports and engines of four take longer than on nodes of their own. The store's rate is what a model of many
gigabytes has on a real network: here a model takes gigabytes / rate.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from dray.report import ReportData
from dray.report.data import ReplicaLine
from dray.store import open_store
from dray.weights.node.places import CACHE_VARIABLE
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.benchmarks.weights import SMOKE_GIGABYTES, Bench, engine, install_peers, runai_environment
from tests.benchmarks.weights_contestants import URI, Work, warm
from tests.support.raylets import Raylets, Shape

NODES = 4
_STEPS = ("one_node", "four_nodes", "plain")
_KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}  # what every node has of its own
_ARGUMENTS = {
    "max_model_len": 256, "max_num_seqs": 8, "enforce_eager": "true", "dtype": "bfloat16",
    "kv_cache_memory_bytes": 64 << 20,
}  # fmt: skip
_ROWS_A_REPLICA, _SHARD_ROWS, _TOKENS = 36, 3, 16
"""So much that a replica which is ready early leaves work for the last one: each is to give a token."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run: seconds to the last first token, and how often the store ``sent`` the model.

    ``parts`` are seconds of the slowest replica, one after the other, and ``whole`` is all of them.
    """

    name: str
    seconds: float
    sent: float
    parts: dict[str, float]
    whole: float = 0.0


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="scale_up")
    if not arguments.smoke:
        install_peers()
    with (
        workload.workspace(arguments.folder) as folder,
        Bench(folder, arguments.gigabytes, 4, arguments.timeout) as bench,
    ):
        measures = _rounds(bench, arguments, report)
    report.raw = [asdict(one) for one in measures]
    report.tables, report.targets = _tables(measures), _targets(measures)
    took = arguments.gigabytes * 1e9 / arguments.rate if arguments.rate else 0.0
    report.notes = [
        f"{arguments.gigabytes:g} GB in bfloat16; the store sends {arguments.rate / 1e6:g} MB/s to all nodes "
        f"together, so one model takes {took:.0f} s. Engine arguments: {_ARGUMENTS}.",
        "Parts are those of the slowest replica, one after the other; the fetch of weights runs beside them, "
        "and `wait` is what of it they do not hide.",
    ]
    return results.publish(report, arguments)


def _rounds(bench: Bench, arguments: argparse.Namespace, report: Report) -> list[Measure]:
    run = _Runs(bench, arguments)
    if not arguments.smoke:
        say("an engine that does not count: it fills vLLM's own caches")
        bench.run(engine("vllm-local"))
    found: list[Measure] = []
    for repeat in range(arguments.repeats):
        for step in (getattr(run, name) for name in arguments.only):
            try:
                new = step()
            except RunError as error:
                report.failures.append(f"round {repeat + 1}: {error}")
                say(f"round {repeat + 1}: FAILED: {str(error)[-1500:]}")
                continue
            found += new
            for one in new:
                say(f"round {repeat + 1}: {one.name}: {one.seconds:.1f} s, {one.sent:.2f} models sent")
    return found


class _Runs:
    """The clusters and the jobs."""

    def __init__(self, bench: Bench, arguments: argparse.Namespace) -> None:
        self._bench = bench
        self._rate: float = arguments.rate
        self._timeout: float = arguments.timeout
        self._smoke: bool = arguments.smoke
        self._count = 0

    def one_node(self) -> list[Measure]:
        """A job on a node that has nothing of the model, and the next one."""
        with self._cluster(1) as raylets:
            found = [self._job(raylets, "cold", 1)]
            return found if self._smoke else [*found, self._job(raylets, "warm", 1)]

    def four_nodes(self) -> list[Measure]:
        """A job with a replica on each of four nodes."""
        with self._cluster(NODES) as raylets:
            return [self._job(raylets, "four nodes", NODES)]

    def plain(self) -> list[Measure]:
        """Four engines that start at a time, each with a store of its own to read."""
        server = self._server()
        folder = self._folder("plain")
        with ThreadPoolExecutor(NODES) as pool:
            ready = list(pool.map(lambda number: self._engine(folder / str(number)), range(NODES)))
        return [Measure(name="plain", seconds=max(ready), sent=self._sent(server), parts={})]

    def _engine(self, folder: Path) -> float:
        """Seconds until one is ready."""
        disk = folder / "disk"
        disk.mkdir(parents=True)
        server = self._bench.server()
        work = Work(
            origin=str(self._bench.origin), url=server.url, uri=URI,
            memory=str(folder / "memory"), disk=str(disk), settings={},
        )  # fmt: skip
        path = folder / "work.json"
        path.write_bytes(orjson.dumps(asdict(work)))
        contestant = engine("vllm-runai", environment=runai_environment(1))
        environment = self._bench.environment(server, contestant) | {CACHE_VARIABLE: work.memory}
        command = [sys.executable, "-m", "tests.benchmarks.weights", "--contestant", contestant.function]
        done = processes.run([*command, "--work", path], timeout=self._timeout, environment=environment)
        done.result()
        return next(line.seconds for line in done.out if line.text == "ready")

    @contextmanager
    def _cluster(self, nodes: int) -> Iterator[Raylets]:
        """A head without CPUs, and so many nodes."""
        warm(int(2 * nodes * self._bench.size))
        log, folder = self._folder("log") / "ray", self._folder("cluster")
        raylets = Raylets(folder, nodes + 1, _KEYS, Shape(head_cpus=0, cpus=1), log)
        try:
            yield raylets
        finally:
            raylets.stop()
            shutil.rmtree(folder, ignore_errors=True)  # the nodes' memory: a model each

    def _job(self, raylets: Raylets, name: str, replicas: int) -> Measure:
        server, folder = self._server(), self._folder("job")
        prompts = workload.prompts((12 if self._smoke else _ROWS_A_REPLICA) * replicas, words=8)
        rows = folder / "in.jsonl"
        lines = [
            orjson.dumps({"custom_id": str(number), "method": "POST", "url": workload.URLS["completion"],
                          "body": workload.body(prompt, "completion", _TOKENS) | {"model": "m"}})
            for number, prompt in enumerate(prompts)
        ]  # fmt: skip
        rows.write_bytes(b"\n".join(lines) + b"\n")
        settings = [f"{key}={value}" for key, value in _ARGUMENTS.items()]
        command = workload.dray_run(
            rows, "--model", URI, "--output", folder / "out", "--job-id", name.replace(" ", "-"),
            "--cluster", str(raylets.settings.address), "--replicas", str(replicas),
            "--shard-rows", str(_SHARD_ROWS), "--model-name", "m", "--replica-cpus", "1",
            *(part for one in settings for part in ("--engine-arg", one)),
        )  # fmt: skip
        environment = {
            **workload.isolated(folder / "prefect"), **_KEYS, **raylets.environment,
            "AWS_ENDPOINT_URL": server.url, "AWS_REGION": "us-east-1",
        }  # fmt: skip
        done: dict[str, Any] = processes.run(command, timeout=self._timeout, environment=environment).result()
        if done["counts"]["done"] != len(prompts):
            raise RunError(f"{name}: answered {done['counts']['done']} of {len(prompts)} rows")
        return _measure(name, replicas, _report(folder / "out"), self._sent(server))

    def _server(self) -> Any:
        server = self._bench.server()
        server.behave(node_rate=self._rate)
        return server

    def _sent(self, server: Any) -> float:
        sent = sum(size for name, size in server.served().items() if name.endswith(".safetensors"))
        return float(sent / self._bench.size)

    def _folder(self, name: str) -> Path:
        self._count += 1
        folder = self._bench.root / "runs" / f"{self._count}-{name}"
        folder.mkdir(parents=True)
        return folder


def _report(output: Path) -> ReportData:
    with open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store:
        [job] = store.list_jobs()
        return ReportData.from_json(job.summary["report"])


def _measure(name: str, replicas: int, report: ReportData, sent: float) -> Measure:
    starts = [(one, one.moments) for one in report.replicas if one.moments is not None]
    tokens = [moments.first_token for _, moments in starts if moments.first_token is not None]
    if len(tokens) != replicas:
        raise RunError(f"{name}: {len(tokens)} of {replicas} replicas gave a token")
    slowest, moments = max(starts, key=lambda pair: pair[1].first_token or 0.0)
    asked = min(one.asked for _, one in starts)
    parts = {"process": moments.began - moments.asked, **_after_another(slowest)}
    assert moments.first_token is not None
    parts["first token"] = max(moments.first_token - moments.ready, 0.0)
    return Measure(
        name=name,
        seconds=max(tokens) - asked,
        sent=sent,
        parts=parts,
        whole=max(moments.first_token, moments.ready) - moments.asked,
    )


def _after_another(replica: ReplicaLine) -> dict[str, float]:
    """The parts of a start without what runs beside them."""
    beside = ("fetch", "cluster", "process")
    return {name: seconds for name, seconds in replica.startup.items() if name not in beside}


def _tables(measures: Sequence[Measure]) -> list[Table]:
    runs = _by_name(measures)
    names = list(dict.fromkeys(part for one in measures for part in one.parts))
    parts = [
        [name, *(spread([run.parts.get(part, 0.0) for run in found]) for part in names)]
        for name, found in runs.items()
        if found[0].parts
    ]
    whole = [
        [name, spread([one.seconds for one in found]), spread([one.sent for one in found])]
        for name, found in runs.items()
    ]
    return [
        Table(title="To the last first token", header=("what", "seconds", "models sent"), rows=whole),
        Table(title="Parts, in seconds", header=("what", *names), rows=parts),
    ]


def _targets(measures: Sequence[Measure]) -> list[Target]:
    runs = _by_name(measures)
    seconds = {name: median([one.seconds for one in found]) for name, found in runs.items()}
    found = []
    for name, above, below, bound in (
        ("cold node / warm node", "cold", "warm", 2.0),
        ("four nodes: plain / dray", "plain", "four nodes", 4.0),
    ):
        if above in seconds and below in seconds:
            found.append(Target(name=name, value=seconds[above] / seconds[below], bound=bound))
    away = [abs(sum(one.parts.values()) / one.whole - 1) for one in measures if one.whole]
    name = "most that the parts are away from the whole"
    return [*found, Target(name=name, value=max(away, default=0.0), bound=0.05, at_least=False)]


def _by_name(measures: Sequence[Measure]) -> dict[str, list[Measure]]:
    found: dict[str, list[Measure]] = defaultdict(list)
    for one in measures:
        found[one.name].append(one)
    return found


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--gigabytes", type=float, default=None, help="of the model (1)")
    parser.add_argument("--rate", type=float, default=50e6, help="bytes/s of the store, to all nodes")
    parser.add_argument("--only", nargs="+", choices=_STEPS, default=_STEPS)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one process may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.rate = 0.0 if arguments.smoke else arguments.rate
    arguments.only = ["one_node"] if arguments.smoke else arguments.only
    arguments.gigabytes = arguments.gigabytes or (SMOKE_GIGABYTES if arguments.smoke else 1.0)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
