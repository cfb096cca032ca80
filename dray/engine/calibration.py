"""Measures the machine for the cost model: ``python -m dray.engine.calibration MODEL`` prints a JSON object.

A process of its own, as a replica is: torch and vLLM stay out of the command that asked for it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from math import ceil
from typing import Any

from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.errors import ConfigError
from dray.kinds import kind_named
from dray.machine import cores, processor_name
from dray.planner.models import model_facts
from dray.requests.model import Request
from dray.requests.spool.spool import encode

_GEMM = (512, 2048, 2048)  # rows, and both sides of the weights
_READ_BYTES = 256 << 20
_TAKE_SECONDS = 0.6  # for each figure of the hardware
_REPEATS = 3  # of each probe
_GIB = 1 << 30

PROBES = (
    # rows at a time, prompt tokens, output tokens
    (1, 16, 48),
    (8, 16, 48),
    (32, 16, 48),
    (128, 16, 48),
    (256, 16, 32),
    (256, 16, 1),
    (64, 256, 1),
    (16, 448, 1),
    (128, 128, 16),
    (32, 256, 32),
)
"""What is put through the engine. Together they tell steps, sampled tokens, prompt tokens and rows apart."""


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a model")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.model)))  # noqa: T201
    return 0


def measure(model: str) -> dict[str, Any]:
    """The hardware's figures, and what each probe of a real engine took."""
    processor = processor_name()  # before vLLM binds threads to cores
    began = time.monotonic()
    engine = Replica("calibration", _spec(model), exit_when_dead=False)
    info = engine.ready()
    start = time.monotonic() - began
    length = info.max_model_len
    probes = [(rows, prompt, output) for rows, prompt, output in PROBES if prompt + output <= length]
    if not probes:
        raise SystemExit(f"dray: {model}: the model takes {length} tokens; take one that takes 64 or more")
    vocabulary = vocabulary_of(info.config)
    feed = _Feed(engine, vocabulary, info.max_num_batched_tokens)
    feed.run(16, 16, 8)  # what is set up at its first use is not measured
    found = [feed.run(*probe) | {"seqs": info.max_num_seqs} for _ in range(_REPEATS) for probe in probes]
    engine.stop()
    hardware = _hardware(processor)
    return {
        **hardware,
        "version": info.version,
        "config": info.config,
        "seqs": info.max_num_seqs,
        "batched_tokens": info.max_num_batched_tokens,
        "start": start,
        "probes": found,
    }


def vocabulary_of(config: str) -> int:
    """The tokens that a model knows; one that also sees may say it of its text's part, or nowhere.

    Raises:
        SystemExit: the cost model does not know the model, so its probes would tell nothing.
    """
    try:
        return model_facts(json.loads(config)).vocabulary
    except ConfigError as error:
        raise SystemExit(f"dray: {error}; calibrate with another --model") from None


def _spec(model: str) -> EngineSpec:
    arguments = {"max_num_seqs": 256, "enable_prefix_caching": False}
    return EngineSpec(name="vllm", model=model, kind=kind_named("completion"), arguments=arguments)


class _Feed:
    """Puts requests of exact lengths through a replica."""

    def __init__(self, engine: Replica, vocabulary: int, batched_tokens: int) -> None:
        self._engine = engine
        self._batched_tokens = batched_tokens  # in a step, at most
        self._random = random.Random(1)  # noqa: S311  the same prompts each time
        self._vocabulary = vocabulary
        self._sessions = 0

    def run(self, rows: int, prompt: int, output: int) -> dict[str, float]:
        """All rows at once; steps and busy seconds of the engine until the last answer.

        The steps are counted by what they have to do: those of the replica's loop are fewer where the
        engine's core is a process of its own.
        """
        self._sessions += 1
        name = f"probe-{self._sessions}"
        busy = self._engine.status().stats.busy_seconds
        self._engine.feed(name, [self._line(index, prompt, output) for index in range(rows)], True)
        answers = [one for batch in self._engine.results(name, 512) for one in batch]
        failed = next((one for one in answers if one.failed), None)
        if failed is not None:
            raise SystemExit(f"dray: a request of the calibration failed: {failed.error_message}")
        after = self._engine.status().stats
        return {
            "rows": rows,
            "prompt": prompt,
            "output": output,
            "steps": ceil(rows * prompt / self._batched_tokens) + output - 1,
            "seconds": after.busy_seconds - busy,
        }

    def _line(self, index: int, prompt: int, output: int) -> bytes:
        asked = {
            "prompt": [self._random.randrange(10, self._vocabulary) for _ in range(prompt)],
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": True,
        }
        return encode(Request(index=index, custom_id=f"r{index}", url="/v1/completions", body=asked))


def _hardware(processor: str) -> dict[str, Any]:
    """Rates of the GPU, or of the processor; they are measured when the engine is gone."""
    import torch

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    if on_gpu:
        memory = float(torch.cuda.get_device_properties(0).total_memory)
    else:
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        torch.set_num_threads(cores())
    gemm = {
        name: rate
        for name, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32))
        if (rate := _gemm_rate(torch, device, kind)) > 0
    }
    return {
        "name": str(torch.cuda.get_device_name()) if on_gpu else processor,
        "gpu": on_gpu,
        "gemm": gemm,
        "bandwidth": _bandwidth(torch, device),
        "memory": memory,
    }


def _gemm_rate(torch: Any, device: str, kind: Any) -> float:
    """Operations/s of a large GEMM."""
    rows, inner, outer = _GEMM if device == "cpu" else tuple(4 * side for side in _GEMM)
    left = torch.ones(rows, inner, dtype=kind, device=device)
    right = torch.ones(inner, outer, dtype=kind, device=device)
    return 2.0 * rows * inner * outer / _seconds(lambda: left @ right, torch, device)


def _bandwidth(torch: Any, device: str) -> float:
    """Bytes/s of reading memory once."""
    size = _READ_BYTES if device == "cpu" else 4 * _GIB
    block = torch.ones(size // 4, dtype=torch.float32, device=device)
    return size / _seconds(block.sum, torch, device)


def _seconds(call: Callable[[], object], torch: Any, device: str) -> float:
    """The shortest of the calls within some time: other work on the machine only makes them longer."""
    wait = torch.cuda.synchronize if device == "cuda" else bool
    call()
    best, until = float("inf"), time.monotonic() + _TAKE_SECONDS
    while time.monotonic() < until:
        wait()
        began = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of the engine's libraries may take seconds to end
