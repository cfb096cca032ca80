"""Whole jobs on one GPU: ``dray run``, with one replica or two, and vLLM's own batch runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks import processes, workload
from tests.benchmarks.contestants import Work
from tests.benchmarks.gpu_engines import Prompts
from tests.benchmarks.processes import RunError
from tests.benchmarks.throughput import run_batch, run_batch_figures

NAMES = ("dray", "dray-halves", "run-batch")
"""``dray-halves`` has two replicas on the GPU, each with half of the memory for its KV cache."""


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """What one job came to, in seconds. ``inference``: dray's, from the first row to the last commit."""

    seconds: float
    inference: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job: ``given`` are the engine arguments beside the model."""

    name: str
    model: Path
    prompts: Prompts
    tokens: int
    given: Mapping[str, Any]

    def run(self, folder: Path, *, timeout: float, environment: Mapping[str, str]) -> WholeRun:
        """Run it in ``folder``.

        Raises:
            RunError: it failed, took too long, or has not answered all rows.
        """
        lines = folder / f"{folder.name}.jsonl"
        lines.parent.mkdir(parents=True, exist_ok=True)
        texts = self.prompts.draw(self.prompts.rows, seed=0)
        workload.write_prompts(lines, texts, "chat", self.tokens)
        if self.name == "run-batch":
            return self._run_batch(lines, folder / "output.jsonl", timeout, environment)
        return self._dray(lines, folder / "out", timeout, environment)

    def _dray(self, lines: Path, output: Path, timeout: float, environment: Mapping[str, str]) -> WholeRun:
        command = workload.dray_run(lines, "--model", self.model, "--output", output, *self._options())
        done = processes.run(command, timeout=timeout, environment=environment)
        result: dict[str, Any] = done.result()
        if result["counts"]["done"] != self.prompts.rows:
            raise RunError(f"{result['counts']}")
        parts = result["seconds"]
        return WholeRun(seconds=done.seconds, inference=parts["inference"], parts=parts)

    def _options(self) -> Sequence[str]:
        given, options = dict(self.given), []
        if self.name == "dray-halves":
            given["kv_cache_memory_bytes"] //= 2
            options = ["--replica-gpus", "0.5"]
        return options + [
            f"--engine-arg={key}={orjson.dumps(value).decode()}" for key, value in given.items()
        ]

    def _run_batch(
        self, lines: Path, output: Path, timeout: float, environment: Mapping[str, str]
    ) -> WholeRun:
        work = Work(
            model=str(self.model), kind="chat", rows=self.prompts.rows, tokens=self.tokens, max_model_len=0,
            input=str(lines), output=str(output), arguments={"model": str(self.model), **self.given},
        )  # fmt: skip
        done = processes.run(run_batch(work, output), timeout=timeout, environment=environment)
        figures = run_batch_figures(done, work)
        if figures["rows"] != self.prompts.rows:
            raise RunError(f"{figures['rows']} rows of {self.prompts.rows}")
        return WholeRun(seconds=done.seconds)
