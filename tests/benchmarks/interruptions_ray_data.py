"""Ray Data's side of the benchmark: ``python -m tests.benchmarks.interruptions_ray_data WORK.json``.

The pipeline is Ray Data LLM's own ``Processor``, and its stage's options are those that its vLLM stage has,
taken from the same configuration class. Only what stands behind ``generate_async`` is not vLLM: a row waits
for one of ``max_num_seqs`` places and then for its time. Importing vLLM's stage would load torch in every new
process, which takes this machine's processors away from everybody and which no replica of dray's simulated
engine does, so the stage is built here from the same parts.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from ray.llm._internal.batch.processor.base import OfflineProcessorConfig, Processor
from ray.llm._internal.batch.stages.base import StatefulStage, StatefulStageUDF

_FACTOR = 1.1  # of max_num_seqs: what Ray Data LLM lets into an engine


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one run is to do."""

    address: str
    input: str  # a folder
    output: str
    checkpoint: str
    trace: str
    engines: int
    max_num_seqs: int
    seconds_per_token: float
    start_seconds: float
    batch_size: int
    concurrent_batches: int | None = None  # None: Ray Data LLM's defaults, 8 that run and 16 that are sent

    def save(self, path: Path) -> Path:
        """Write it down for the process."""
        path.write_bytes(orjson.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> Work:
        """Read it in the process."""
        return cls(**orjson.loads(path.read_bytes()))


class EngineStageUDF(StatefulStageUDF):  # type: ignore[misc]  # Ray's is untyped
    """``vLLMEngineStageUDF`` with a pretended engine: all rows of a batch at once, answers as they come."""

    def __init__(self, data_column: str, expected_input_keys: list[str], work: dict[str, Any]) -> None:
        super().__init__(data_column, expected_input_keys)
        self._seconds_per_token = work["seconds_per_token"]
        self._admitted = asyncio.Semaphore(math.ceil(_FACTOR * work["max_num_seqs"]))
        self._running = asyncio.Semaphore(work["max_num_seqs"])
        trace = Path(work["trace"]) / f"ray-data-{os.getpid()}.trace"
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        time.sleep(work["start_seconds"])

    async def udf(self, rows: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        """Run a batch."""
        tasks = [asyncio.create_task(self._answer(row)) for row in rows]
        for done in asyncio.as_completed(tasks):
            yield await done

    async def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        tokens = int(row["sampling_params"]["max_tokens"])
        async with self._admitted:
            os.write(self._trace, f"admit {row['custom_id'].removeprefix('r')}\n".encode())
            async with self._running:
                await asyncio.sleep(tokens * self._seconds_per_token)
        digest = hashlib.blake2b(row["prompt"].encode(), digest_size=32).hexdigest()
        return {
            self.IDX_IN_BATCH_COLUMN: row[self.IDX_IN_BATCH_COLUMN],
            "generated_text": (digest * (tokens * 4 // len(digest) + 1))[: tokens * 4],
            "num_generated_tokens": tokens,
            "__inference_error__": "",
        }


def processor(work: Work) -> Processor:
    """``build_vllm_engine_processor`` (Ray 2.60) with tokenizer and template stages off."""
    import ray

    batches = work.concurrent_batches
    config = OfflineProcessorConfig(
        model_source="simulated",
        batch_size=work.batch_size,
        # (n, n), not n: that starts with one engine and adds more as it sees fit. dray starts all at once.
        concurrency=(work.engines, work.engines),
        should_continue_on_error=True,
        **({"max_concurrent_batches": batches, "max_tasks_in_flight_per_actor": batches} if batches else {}),
    )
    stage = StatefulStage(
        fn=EngineStageUDF,
        fn_constructor_kwargs={"work": asdict(work)},
        map_batches_kwargs={
            "zero_copy_batch": True,
            "compute": ray.data.ActorPoolStrategy(
                **config.get_concurrency(autoscaling_enabled=True),
                max_tasks_in_flight_per_actor=config.max_tasks_in_flight_per_actor,
            ),
            "max_concurrency": config.max_concurrent_batches,
            "accelerator_type": config.accelerator_type,
            "runtime_env": config.runtime_env,
            "num_gpus": 1,  # what its post_init asks for with tensor and pipeline parallel size 1
        },
    )
    return Processor(config, [stage], preprocess=_asked, postprocess=_answered)


def _asked(row: dict[str, Any]) -> dict[str, Any]:
    body = row["body"]
    return {
        "prompt": body["messages"][0]["content"],
        "sampling_params": {"max_tokens": body["max_tokens"], "temperature": body["temperature"]},
        "custom_id": row["custom_id"],
    }


def _answered(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "custom_id": row["custom_id"],
        "text": row["generated_text"],
        "tokens": row["num_generated_tokens"],
    }


def main() -> None:
    """One run; the same again goes on from the checkpoint."""
    import ray
    from ray.data.checkpoint import CheckpointConfig

    work = Work.load(Path(sys.argv[1]))
    began = time.perf_counter()
    ray.init(address=work.address, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.checkpoint_config = CheckpointConfig(id_column="custom_id", checkpoint_path=work.checkpoint)
    ready = time.perf_counter()
    # As many blocks as files: else each is split, those of the filter of done rows too, down to single rows.
    files = sorted(Path(work.input).glob("*.jsonl"))
    rows = ray.data.read_json([str(file) for file in files], override_num_blocks=len(files))
    processor(work)(rows).write_parquet(work.output)
    done = time.perf_counter()
    print(orjson.dumps({"parts": {"ray.init": ready - began, "dataset": done - ready}}).decode(), flush=True)


if __name__ == "__main__":
    main()
