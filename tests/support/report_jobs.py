"""Made-up jobs for the tests of reports: seeded, and counted by the real ``Tally``."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from dray.report import Attempt, Counts, Moments, OutputFile, Phase, ReplicaLine, ReportData, Tally, Tokens
from tests.support.report_rows import START, pages


def big(rows: int = 200_000, shards: int = 512, replicas: int = 8, scale: int = 1) -> ReportData:
    """A large job that went well, with two nodes lost on the way."""
    inference = 2400.0
    tally = Tally()
    for page in pages(rows, seconds=inference, start=START + 150):
        tally.observe(page)
    measures = tally.snapshot()
    measures = replace(measures, run_rows=rows * scale, run_tokens=_times(measures.run_tokens, scale))
    names = [f"replica-{n}" for n in range(replicas)]
    return ReportData(
        job_id="support-tickets-2026-11",
        title="Support tickets, November",
        state="completed",
        generated_at=START + 2600,
        model="Qwen/Qwen3-8B",
        kind="chat",
        engine="vllm",
        counts=Counts(total=rows * scale, done=rows * scale),
        tokens=_times(measures.tokens, scale),
        seconds={
            "total": 2590.0,
            "ingest": 42.0,
            "cluster": 96.0,
            "weights": 38.0,
            "engine_start": 51.0,
            "inference": inference,
            "finalise": 31.0,
        },
        measures=measures,
        phases=(
            Phase(name="ingest", start=START, end=START + 42),
            Phase(name="cluster", start=START + 1, end=START + 97),
            Phase(name="engine_start", start=START + 97, end=START + 150),
            Phase(name="inference", start=START + 150, end=START + 150 + inference),
            Phase(name="finalise", start=START + 150 + inference, end=START + 2581),
            *(
                Phase(name=name, start=START + start + 2 * n, end=START + end + 2 * n, lane=replica)
                for n, replica in enumerate(names)
                for name, start, end in (
                    ("weights", 97, 135),
                    ("engine_start", 135, 150),
                    ("busy", 150, 2530),
                )
            ),
        ),
        attempts=_attempts(shards, names, rows * scale, inference, START + 150),
        replicas=tuple(
            ReplicaLine(
                name=name,
                node=f"ip-10-0-{n // 4}-{n * 17 % 250}",
                startup={"import": 14.1, "wait": 9.0 + n / 2, "engine": 21.0, "load": 2.5, "warm up": 1.2},
                moments=Moments(
                    asked=START + 97,
                    began=START + 99.5,
                    ready=START + 147.9 + n / 2,
                    first_token=START + 150 + n,
                    weights=(START + 98, START + 135 + 2 * n),
                ),
                busy_seconds=inference - 20 - 3 * n,
                rows=rows * scale // replicas,
                tokens_per_second=9300.0 - 41 * n,
            )
            for n, name in enumerate(names)
        ),
        interruptions=2,
        retries={"SPOT": 7},
        files=_files(rows * scale),
        environment={
            "dray": "0.1.0",
            "vllm": "0.32.0",
            "ray": "2.60.0",
            "machine": "8 of g6e.xlarge, one L40S each",
        },
        settings={
            "model": "Qwen/Qwen3-8B",
            "max_tokens": 128,
            "temperature": 0.0,
            "replicas": replicas,
            "system_prompt": None,
        },
    )


def small(rows: int = 2000, errors: dict[str, float] | None = None) -> ReportData:
    """A job of seconds on one machine."""
    tally = Tally()
    for page in pages(rows, seconds=6.4, start=START + 9.1, errors=errors, completion=(3.0, 0.2)):
        tally.observe(page)
    measures = tally.snapshot()
    return ReportData(
        job_id="tickets-5f0c2a",
        state="completed",
        generated_at=START + 17,
        model="examples/tickets/model",
        kind="chat",
        engine="vllm",
        counts=Counts(total=rows, done=rows - measures.failed, failed=measures.failed),
        tokens=measures.tokens,
        seconds={
            "total": 16.2,
            "ingest": 0.06,
            "cluster": 3.9,
            "weights": 0.4,
            "engine_start": 5.0,
            "inference": 6.5,
            "finalise": 0.12,
        },
        measures=measures,
        phases=(
            Phase(name="ingest", start=START + 0.1, end=START + 0.16),
            Phase(name="cluster", start=START + 0.1, end=START + 4.0),
            Phase(name="engine_start", start=START + 4.0, end=START + 9.0),
            Phase(name="inference", start=START + 9.0, end=START + 15.5),
            Phase(name="finalise", start=START + 15.5, end=START + 15.62),
        ),
        attempts=_attempts(8, ["replica-0"], rows, 6.5, START + 9.0, lost=0),
        replicas=(
            ReplicaLine(
                name="replica-0",
                node="this machine",
                startup={"import": 3.1, "engine": 0.9},
                moments=Moments(
                    asked=START + 4.0, began=START + 4.8, ready=START + 9.0, first_token=START + 9.2
                ),
                busy_seconds=6.4,
                rows=rows,
                tokens_per_second=measures.tokens.total / 6.5,
            ),
        ),
        files=_files(rows),
        settings={"model": "examples/tickets/model", "max_tokens": 64},
        environment={"dray": "0.1.0", "python": "3.11.2", "cpus": "2"},
    )


def fetched() -> ReportData:
    """Two replicas on two nodes, of a model from an object store; the second one got no row for long."""
    data = small()
    names = ("replica-0", "replica-1")
    moments = (
        Moments(
            asked=START + 4.0,
            began=START + 4.8,
            ready=START + 11.0,
            first_token=START + 11.4,
            weights=(START + 1.5, START + 9.5),
        ),
        Moments(
            asked=START + 4.0,
            began=START + 5.0,
            ready=START + 12.0,
            first_token=START + 60.0,
            weights=(START + 2.0, START + 8.0),
        ),
    )
    return replace(
        data,
        model="s3://models/tickets",
        replicas=tuple(
            replace(
                data.replicas[0],
                name=name,
                startup={"import": 3.0, "wait": 2.0 - 2 * number, "engine": 1.0 + 2 * number, "load": 0.1},
                moments=moment,
            )
            for number, (name, moment) in enumerate(zip(names, moments, strict=True))
        ),
    )


def troubled() -> ReportData:
    """Many error rows, of several codes."""
    codes = {
        "context_length_exceeded": 0.12,
        "unknown_field": 0.05,
        "model_mismatch": 0.02,
        "invalid_json_schema": 0.004,
        "poison": 0.0006,
    }
    return replace(small(errors=codes), retries={"ENGINE_CRASH": 2, "STORE_TRANSIENT": 1})


def resumed() -> ReportData:
    """Cancelled, then resumed on the next day, then cancelled again."""
    day = 86_400.0
    tally = Tally(since=START + day)
    for page in pages(12_000, seconds=300, start=START + 30):
        tally.observe(page)
    for page in pages(9_000, seconds=260, start=START + day + 25, first=12_000, seed=8):
        tally.observe(page)
    measures = tally.snapshot()
    return ReportData(
        job_id="nightly-summaries",
        state="cancelled",
        reason="asked for at the terminal",
        generated_at=START + day + 300,
        model="meta-llama/Llama-3.1-8B-Instruct",
        kind="completion",
        engine="vllm",
        counts=Counts(total=50_000, done=21_000, skipped=12_000, pending=29_000),
        tokens=measures.tokens,
        seconds={
            "total": 291.0,
            "ingest": 0.0,
            "cluster": 12.0,
            "engine_start": 13.0,
            "inference": 261.0,
            "finalise": 1.2,
        },
        measures=measures,
        phases=(
            Phase(name="ingest", start=START, end=START + 4),
            Phase(name="cluster", start=START, end=START + 13),
            Phase(name="engine_start", start=START + 13, end=START + 30),
            Phase(name="inference", start=START + 30, end=START + 331),
            Phase(name="cluster", start=START + day, end=START + day + 12),
            Phase(name="engine_start", start=START + day + 12, end=START + day + 25),
            Phase(name="inference", start=START + day + 25, end=START + day + 286),
            Phase(name="finalise", start=START + day + 286, end=START + day + 287.2),
        ),
        attempts=(
            Attempt(
                shard=3,
                epoch=1,
                replica="replica-0",
                cause="CANCEL",
                seconds=41.0,
                rows=310,
                started=START + 290,
            ),
            Attempt(
                shard=0,
                epoch=1,
                replica="replica-0",
                cause="DONE",
                seconds=260.0,
                rows=11_690,
                started=START + 30,
            ),
            Attempt(
                shard=3,
                epoch=2,
                replica="replica-1",
                cause="DONE",
                seconds=190.0,
                rows=7_000,
                started=START + day + 25,
            ),
            Attempt(
                shard=4,
                epoch=1,
                replica="replica-1",
                cause="CANCEL",
                seconds=71.0,
                rows=2_000,
                started=START + day + 215,
            ),
        ),
        replicas=(
            ReplicaLine(
                name="replica-0", node="gpu-1", busy_seconds=300, rows=12_000, tokens_per_second=8_312.0
            ),
            ReplicaLine(
                name="replica-1", node="gpu-1", busy_seconds=259, rows=9_000, tokens_per_second=7_990.5
            ),
        ),
        files=_files(21_000),
        settings={"max_tokens": 256},
    )


def empty() -> ReportData:
    """Failed before the first row was done."""
    return ReportData(
        job_id="first-try",
        state="failed",
        reason="the engine never became ready",
        generated_at=START + 70,
        model="models/broken",
        kind="chat",
        engine="vllm",
        counts=Counts(total=40, pending=40),
        seconds={"total": 66.0, "ingest": 0.0, "cluster": 4.0, "engine_start": 60.0, "inference": 0.0},
        phases=(
            Phase(name="ingest", start=START, end=START + 0.01),
            Phase(name="cluster", start=START, end=START + 4),
            Phase(name="engine_start", start=START + 4, end=START + 64),
        ),
    )


def _times(tokens: Tokens, factor: int) -> Tokens:
    return Tokens(
        prompt=tokens.prompt * factor, cached=tokens.cached * factor, completion=tokens.completion * factor
    )


def _attempts(
    shards: int, replicas: list[str], rows: int, seconds: float, start: float, *, lost: int = 7
) -> tuple[Attempt, ...]:
    """Shards four at a time on each replica; the first ``lost`` of them were interrupted once."""
    rng = np.random.default_rng(3)
    tracks = 4 * len(replicas)
    each = seconds / max(shards / tracks, 1)
    found = []
    for shard in range(shards):
        track = shard % tracks
        began = start + (shard // tracks) * each + float(rng.uniform(0, 0.1)) * each
        replica = replicas[track % len(replicas)]
        took = each * float(rng.uniform(0.75, 0.9))
        epoch = 1
        if 100 <= shard < 100 + lost:
            found.append(
                Attempt(
                    shard=shard,
                    epoch=1,
                    replica=replica,
                    cause="SPOT",
                    seconds=took * 0.3,
                    rows=rows // shards // 4,
                    started=began,
                )
            )
            began, took, epoch = began + took * 0.35, took * 0.6, 2
        found.append(
            Attempt(
                shard=shard,
                epoch=epoch,
                replica=replica,
                cause="DONE",
                seconds=took,
                rows=rows // shards,
                started=began,
            )
        )
    return tuple(found)


def _files(rows: int) -> tuple[OutputFile, ...]:
    return tuple(
        OutputFile(
            name=name,
            uri=f"out/{name}",
            size=size,
            sha256=hashlib.sha256(name.encode()).hexdigest(),
            rows=lines,
        )
        for name, size, lines in (("output.jsonl", rows * 612, rows), ("errors.jsonl", 0, 0))
    )
