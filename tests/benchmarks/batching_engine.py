"""One vLLM engine that answers the same requests in two ways: ``... batching_engine ASKED.json``.

Static: ``LLM.generate`` on as many requests as the engine has places, and on the next ones when the last
answer of these is there. Continuous: the engine gets a request when it comes, and fills a place once it is
free. Both go through the same engine in the same process, so nothing else differs.

A JSON object on the last line of stdout has the figures.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import orjson

from dray.engine.model_folder import EngineModel
from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.arguments import engine_arguments, prepare_environment
from dray.kinds import kind_named
from tests.benchmarks.batching_lengths import SHAPES, Shape, arrivals
from tests.benchmarks.workload import prompts

WORDS = 8
POLICIES = ("static", "continuous")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the process is to measure. ``shares``: arrival rates, as shares of what continuous batching does.

    ``shape_of_arrivals`` names the lengths of requests that come one by one; ``coming`` is their number.
    """

    model: str
    device: str | None
    places: int
    rows: int
    coming: int
    repeats: int
    shapes: Sequence[str]
    shape_of_arrivals: str
    shares: Sequence[float] = ()
    max_model_len: int = 512

    def save(self, path: Path) -> Path:
        """Write it down for the process."""
        path.write_bytes(orjson.dumps(asdict(self)))
        return path


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Requests a second from the first request to the last answer."""

    shape: str
    policy: str
    rate: float


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds from the moment a request was to come until its answer, while ``share`` of the rate comes."""

    share: float
    rate: float
    policy: str
    median: float
    p95: float


@dataclass(kw_only=True)
class Found:
    """All figures of one engine."""

    throughputs: list[Throughput] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)


class Engine:
    """vLLM's ``LLM`` with a number of places, in this process."""

    def __init__(self, asked: Asked) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        given: dict[str, Any] = {
            "max_model_len": asked.max_model_len,
            "max_num_seqs": asked.places,
            "enable_prefix_caching": False,
        }
        if asked.device is not None:
            given["distributed_executor_backend"] = asked.device
        spec = EngineSpec(name="vllm", model=asked.model, kind=kind_named("completion"), arguments=given)
        prepare_environment(spec)
        with EngineModel(spec) as model:
            arguments = engine_arguments(spec, model.arguments(), cpu=True)
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._sampling = SamplingParams
        self._final = RequestOutputKind.FINAL_ONLY  # as LLM.generate has it
        self._llm = LLM(**{**arguments, "disable_log_stats": True})
        self._places = asked.places

    def static(self, texts: Sequence[str], lengths: Sequence[int]) -> None:
        """Batch after batch; each waits for its longest answer."""
        for start in range(0, len(texts), self._places):
            batch = slice(start, start + self._places)
            self._generate(texts[batch], lengths[batch])

    def continuous(self, texts: Sequence[str], lengths: Sequence[int]) -> None:
        """All at once."""
        self._generate(texts, lengths)

    def static_as_they_come(
        self, texts: Sequence[str], lengths: Sequence[int], moments: Sequence[float]
    ) -> list[float]:
        """Seconds that each request waits for its answer; batches are formed of those that are there."""
        began, done, waits = time.perf_counter(), 0, []
        while done < len(texts):
            now = time.perf_counter() - began
            there = sum(moment <= now for moment in moments[done : done + self._places])
            if not there:
                time.sleep(max(moments[done] - now, 0.0))
                continue
            batch = slice(done, done + there)
            self._generate(texts[batch], lengths[batch])
            now = time.perf_counter() - began
            waits += [now - moment for moment in moments[batch]]
            done += there
        return waits

    def continuous_as_they_come(
        self, texts: Sequence[str], lengths: Sequence[int], moments: Sequence[float]
    ) -> list[float]:
        """The same, where a request enters the engine at the first step after it came."""
        engine = self._llm.llm_engine
        began, entered, waits = time.perf_counter(), 0, [0.0] * len(texts)
        while entered < len(texts) or engine.has_unfinished_requests():
            now = time.perf_counter() - began
            while entered < len(texts) and moments[entered] <= now:
                engine.add_request(str(entered), texts[entered], self._parameters(lengths[entered]))
                entered += 1
            if not engine.has_unfinished_requests():
                time.sleep(max(moments[entered] - now, 0.0))
                continue
            answers = [answer for answer in engine.step() if answer.finished]
            now = time.perf_counter() - began
            for answer in answers:
                number = int(answer.request_id)
                waits[number] = now - moments[number]
        return waits

    def _generate(self, texts: Sequence[str], lengths: Sequence[int]) -> None:
        asked = [self._parameters(length) for length in lengths]
        answers = self._llm.generate(list(texts), asked, use_tqdm=False)
        given = [len(answer.outputs[0].token_ids) for answer in answers]
        if given != list(lengths):
            raise RuntimeError(f"{sum(given)} tokens came, and {sum(lengths)} were asked for")

    def _parameters(self, length: int) -> Any:
        return self._sampling(max_tokens=length, temperature=0, ignore_eos=True, output_kind=self._final)


def measure(asked: Asked) -> Found:
    """Throughput of each shape in interleaved rounds, then latencies up to saturation."""
    engine, found = Engine(asked), Found()
    shapes = {one.name: one for one in SHAPES}
    engine.continuous(prompts(2 * asked.places, seed=9, words=WORDS), [16] * 2 * asked.places)  # warm-up
    for repeat in range(asked.repeats):
        for name in asked.shapes:
            for policy in POLICIES if repeat % 2 == 0 else reversed(POLICIES):
                found.throughputs.append(_throughput(engine, shapes[name], policy, asked.rows))
    if asked.shares:
        top = _saturated(found, asked.shape_of_arrivals)
        for share in asked.shares:
            for policy in POLICIES:
                found.latencies.append(
                    _latency(engine, shapes[asked.shape_of_arrivals], policy, asked, (share, top))
                )
    return found


def _throughput(engine: Engine, shape: Shape, policy: str, rows: int) -> Throughput:
    texts, lengths = prompts(rows, words=WORDS), shape.lengths(rows)
    answer = engine.static if policy == "static" else engine.continuous
    began = time.perf_counter()
    answer(texts, lengths)
    return Throughput(shape=shape.name, policy=policy, rate=rows / (time.perf_counter() - began))


def _saturated(found: Found, shape: str) -> float:
    """Requests a second that continuous batching answers where it always has some."""
    return median(one.rate for one in found.throughputs if (one.shape, one.policy) == (shape, "continuous"))


def _latency(engine: Engine, shape: Shape, policy: str, asked: Asked, load: tuple[float, float]) -> Latency:
    share, top = load
    rate = share * top
    texts, lengths = prompts(asked.coming, words=WORDS), shape.lengths(asked.coming)
    answer = engine.static_as_they_come if policy == "static" else engine.continuous_as_they_come
    waits = answer(texts, lengths, arrivals(asked.coming, rate))
    return Latency(
        share=share, rate=rate, policy=policy, median=median(waits), p95=quantiles(waits, n=20)[-1]
    )


def main() -> None:
    """Measure what the file asks."""
    arguments = parse()
    asked = Asked(**orjson.loads(arguments.asked.read_bytes()))
    print(orjson.dumps(asdict(measure(asked))).decode(), flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("asked", type=Path)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
