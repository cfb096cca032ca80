"""Millions of embeddings through ``dray run`` into an object store: memory, and files in parts.

::

    python -m tests.benchmarks.embeddings           300,000 and 3,000,000 rows of 1,024 numbers, in base64
    python -m tests.benchmarks.embeddings --quick   2,000 and 10,000 rows in small parts, once

Requests come from the object store, answers go to it, and the store of results is SQLite: 5.8 KB a row
of answers, and 8.2 KB of the store. Three million rows need 50 GB of disk. The object store
is the tests' emulator of S3, in a process of its own; it keeps files.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import orjson

from dray.kinds import Kind
from dray.storage.layout import manifest_name
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, number, say, spread
from tests.support.s3_emulator import EmulatorProcess

DIMENSIONS = 1024
_BUCKET = "bucket"
_MB = 1_000_000
_BLOCK = 1 << 20
_PHASES = ("ingest", "inference", "finalise")  # the phases whose time grows with the rows


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run. ``memory`` is the largest resident size of each kind of process, in bytes."""

    name: str
    rows: int
    seconds: float
    phases: dict[str, float]
    memory: dict[str, int]
    parts: int
    answers: int

    @property
    def rate(self) -> float:
        """Rows a second from process start to exit."""
        return self.rows / self.seconds


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="embeddings")
    with workload.workspace(arguments.folder) as folder:
        (folder / "s3" / _BUCKET).mkdir(parents=True)
        emulator = EmulatorProcess(folder / "s3")
        try:
            measures = _rounds(arguments, folder, emulator, report)
        finally:
            emulator.stop()
    report.raw = [asdict(measure) for measure in measures]
    groups = {rows: [one for one in measures if one.rows == rows] for rows in arguments.rows}
    groups = {rows: runs for rows, runs in groups.items() if runs}
    report.tables = [_speed(groups), _memory(groups)]
    report.targets = _targets(groups, quick=arguments.quick)
    report.notes = [
        f"Each answer is {DIMENSIONS:,} numbers (float32) in base64. Requests were read from S3 and answers "
        "written to it; the store of results is SQLite. One simulated replica.",
        "The rows of all files were counted, the SHA-256 of parts compared with the manifest's, and the "
        "first and the last answer decoded.",
        "Memory is VmHWM, seen every half second.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=None, help="(300000 3000000)")
    parser.add_argument(
        "--part-bytes", type=int, default=None, help="most bytes of a file of answers (4 GiB)"
    )
    parser.add_argument("--timeout", type=float, default=7200, help="seconds that one run may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or 1
    quick = [100] if arguments.smoke else [2000, 10_000]
    arguments.rows = sorted(arguments.rows or (quick if arguments.quick else [300_000, 3_000_000]))
    small = 256 << 10 if arguments.smoke else 8 << 20
    arguments.part_bytes = arguments.part_bytes or (small if arguments.quick else 4 << 30)
    return arguments


def _rounds(
    arguments: argparse.Namespace, folder: Path, emulator: EmulatorProcess, report: Report
) -> list[Measure]:
    """All runs; one that fails is noted, and the others go on."""
    measures = []
    for repeat in range(arguments.repeats):
        for rows in arguments.rows:
            label = f"round {repeat + 1}: {rows:,} rows"
            try:
                measure = _measure(rows, folder, emulator, arguments)
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            measures.append(measure)
            largest = max(measure.memory.values()) / _MB
            say(f"{label}: {measure.rate:,.0f} rows/s, {measure.parts} parts, at most {largest:.0f} MB")
    return measures


def _measure(rows: int, folder: Path, emulator: EmulatorProcess, arguments: argparse.Namespace) -> Measure:
    bucket = folder / "s3" / _BUCKET
    _write_requests(bucket / "in.jsonl", rows)
    options = emulator.options
    environment = workload.isolated(folder / "prefect") | {
        "AWS_ENDPOINT_URL": emulator.url,
        "AWS_REGION": options.region or "",
        "AWS_ACCESS_KEY_ID": options.access_key_id or "",
        "AWS_SECRET_ACCESS_KEY": options.secret_access_key or "",
        "AWS_ALLOW_HTTP": "true",
    }
    command = workload.dray_run(
        f"s3://{_BUCKET}/in.jsonl", "--model", "simulated", "--engine", "simulated",
        "--output", f"s3://{_BUCKET}/out", "--store", f"sqlite:///{folder}/store/jobs.db",
        "--part-bytes", str(arguments.part_bytes),
    )  # fmt: skip
    (folder / "store").mkdir()
    try:
        done = processes.run(command, timeout=arguments.timeout, environment=environment)
        result: dict[str, Any] = done.result()
        if result["counts"]["done"] != rows:
            raise RunError(f"not all of {rows} rows are done: {result['counts']}")
        parts, answers = _check(bucket / "out", rows)
    finally:
        shutil.rmtree(folder / "store", ignore_errors=True)
        shutil.rmtree(bucket / "out", ignore_errors=True)
    return Measure(
        name=f"{rows} rows",
        rows=rows,
        seconds=done.seconds,
        phases=dict(result["seconds"]),
        memory={"dray run": done.peak, **done.others},
        parts=parts,
        answers=answers,
    )


def _write_requests(path: Path, rows: int) -> None:
    with path.open("wb", buffering=_BLOCK) as file:
        prompts = workload.prompts(min(rows, 100_000), words=8)
        for index, prompt in enumerate(islice(cycle(prompts), rows)):
            body = {
                "input": f"{index} {prompt}",
                "dimensions": DIMENSIONS,
                "encoding_format": "base64",
            }
            line = {"custom_id": f"r{index}", "method": "POST", "url": Kind.EMBEDDING.url, "body": body}
            file.write(orjson.dumps(line) + b"\n")


def _check(output: Path, rows: int) -> tuple[int, int]:
    """Parts and bytes of the answers, after a look at all of them.

    Raises:
        RunError: they are not what the manifest or the requests say.
    """
    manifest = output / manifest_name("output", "jsonl")
    if not manifest.exists():
        names, digests = ["output.jsonl"], [None]
    else:
        listed = orjson.loads(manifest.read_bytes())["parts"]
        names, digests = [part["name"] for part in listed], [part["sha256"] for part in listed]
    found, total = 0, 0
    for name, digest in zip(names, digests, strict=True):
        lines, size, measured = _read(output / name)
        found, total = found + lines, total + size
        if digest not in (None, measured):
            raise RunError(f"{name} is not what the manifest says")
    if found != rows:
        raise RunError(f"{found} rows in {len(names)} files, not {rows}")
    _decode(output / names[0], first=True, wanted="r0")
    _decode(output / names[-1], first=False, wanted=f"r{rows - 1}")
    return len(names), total


def _read(path: Path) -> tuple[int, int, str]:
    """Lines, bytes and SHA-256."""
    lines, size, digest = 0, 0, hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            lines, size = lines + block.count(b"\n"), size + len(block)
            digest.update(block)
    return lines, size, digest.hexdigest()


def _decode(path: Path, *, first: bool, wanted: str) -> None:
    """Read the first or last answer as a user would."""
    with path.open("rb") as file:
        if not first:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
        lines = file.read(64 * 1024).splitlines()
    row = orjson.loads(lines[0 if first else -1])
    vector = b64decode(row["response"]["body"]["data"][0]["embedding"])
    if row["custom_id"] != wanted or len(vector) != 4 * DIMENSIONS:
        raise RunError(f"{path.name}: {row['custom_id']} has {len(vector)} bytes")


Groups = dict[int, list[Measure]]


def _speed(groups: Groups) -> Table:
    rows = [
        [f"{count:,}", spread([run.rate for run in runs]), spread([run.seconds for run in runs]),
         *[spread([run.phases[phase] for run in runs]) for phase in _PHASES],
         f"{runs[0].answers / 1e9:.2f}", str(runs[0].parts), str(len(runs))]
        for count, runs in groups.items()
    ]  # fmt: skip
    header = ("rows", "rows/s", "wall clock, s", *[f"{phase}, s" for phase in _PHASES], "GB", "files", "runs")
    return Table(title="The whole path", header=header, rows=rows)


def _memory(groups: Groups) -> Table:
    names = sorted({name for runs in groups.values() for run in runs for name in run.memory})
    sizes = {name: [_peak(runs, name) for runs in groups.values()] for name in names}
    told = sorted(names, key=lambda name: (name != "dray run", -max(sizes[name])))[:7]
    header = ("MB", *[f"{count:,} rows" for count in groups])
    rows = [[name, *[number(size / _MB) for size in sizes[name]]] for name in told]
    return Table(title="Peak memory", header=header, rows=rows)


def _peak(runs: Sequence[Measure], name: str) -> float:
    return median([run.memory.get(name, 0) for run in runs])


def _targets(groups: Groups, *, quick: bool) -> list[Target]:
    if len(groups) < 2:
        return []
    few, many = min(groups), max(groups)
    growth = _peak(groups[many], "dray run") - _peak(groups[few], "dray run")
    per_row = {
        count: median([sum(run.phases[phase] for phase in _PHASES) for run in runs]) / count
        for count, runs in groups.items()
    }
    return [
        Target(name="files of answers", value=groups[many][0].parts, bound=2),
        Target(name=f"driver memory at {many:,} over {few:,} rows, MB", value=growth / _MB, bound=300,
               at_least=False),
        Target(name=f"time per row at {many:,} / at {few:,}", value=per_row[many] / per_row[few],
               bound=None if quick else 1.2, at_least=False),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
