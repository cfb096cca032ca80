"""One engine, in turns with others: ``python -m tests.benchmarks.gpu_engines limit|replica WORK.json``.

An engine on a GPU starts in most of a minute. So each is started once, says how long its parts took, and then
answers a workload for each line on stdin: ``{"workload": "plain", "seed": 1}``. What it says is a JSON object
a line, among other lines.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tests.benchmarks.workload import prompts, spool_lines

if TYPE_CHECKING:
    from dray.engine.protocol import EngineSpec

_WARM_UP = 256
_WARM_SEED = 1000


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What is asked: ``words`` a prompt (as many tokens), of which all rows share the first ``shared``."""

    name: str
    rows: int
    words: int
    shared: int = 0

    def draw(self, rows: int, *, seed: int) -> list[str]:
        """``rows`` prompts; another seed has another prefix, so that no run finds a former one's cache."""
        own = prompts(rows, seed=seed, words=self.words - self.shared)
        if not self.shared:
            return own
        prefix = prompts(1, seed=10_000 + seed, words=self.shared)[0]
        return [f"{prefix} {prompt}" for prompt in own]


@dataclass(frozen=True, kw_only=True)
class GpuWork:
    """What one process is to do. ``given``: engine arguments, beside the model."""

    model: str
    apart: bool
    tokens: int
    workloads: list[Prompts]
    given: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> Path:
        """Write it down for the process."""
        path.write_bytes(orjson.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> GpuWork:
        """Read it in the process."""
        read = orjson.loads(path.read_bytes())
        return cls(**read | {"workloads": [Prompts(**one) for one in read["workloads"]]})


Answer = Callable[[list[str]], tuple[int, int]]  # prompts -> rows and tokens that came back


def limit(work: GpuWork) -> tuple[dict[str, float], Answer, Callable[[], None]]:
    """``LLM.generate`` without log statistics: nothing in one process can be faster."""
    from dray.engine.vllm_adapter.arguments import prepare_environment

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(work.apart))
    prepare_environment(_spec(work))
    began = time.perf_counter()
    from vllm import LLM, SamplingParams

    imported = time.perf_counter()
    llm = LLM(model=work.model, seed=0, disable_log_stats=True, **work.given)
    ready = time.perf_counter()
    sampling = SamplingParams(max_tokens=work.tokens, temperature=0, ignore_eos=True)

    def answer(texts: list[str]) -> tuple[int, int]:
        outputs = llm.generate(texts, sampling, use_tqdm=False)
        return len(outputs), sum(len(output.outputs[0].token_ids) for output in outputs)

    return {"import": imported - began, "engine": ready - imported}, answer, lambda: None


def replica(work: GpuWork) -> tuple[dict[str, float], Answer, Callable[[], None]]:
    """dray's replica without Ray around it: request lines in, outcomes out."""
    from dray.engine.replica import Replica

    engine = Replica("replica", _spec(work), exit_when_dead=False)
    info = engine.ready()
    sessions = iter(range(1 << 30))

    def answer(texts: list[str]) -> tuple[int, int]:
        session = f"session-{next(sessions)}"
        engine.feed(session, spool_lines(texts, "completion", work.tokens), True)
        rows = tokens = 0
        for batch in engine.results(session, 256):
            rows += sum(not outcome.failed for outcome in batch)
            tokens += sum(outcome.completion_tokens or 0 for outcome in batch)
        return rows, tokens

    return dict(info.timeline), answer, engine.stop


def _spec(work: GpuWork) -> EngineSpec:
    from dray.engine.protocol import EngineSpec
    from dray.kinds import kind_named

    place = {"engine_core": "apart" if work.apart else "inside"}
    return EngineSpec(
        name="vllm", model=work.model, kind=kind_named("completion"), arguments=work.given | place
    )


ENGINES = {"limit": limit, "replica": replica}


def main() -> None:
    """Start one engine, and answer the turns that come on stdin, one a line, until it ends."""
    arguments = parse()
    work = GpuWork.load(arguments.work)
    began = time.perf_counter()
    start, answer, stop = ENGINES[arguments.name](work)
    start["all"] = time.perf_counter() - began
    answer(work.workloads[0].draw(_WARM_UP, seed=_WARM_SEED))
    _say({"start": start})
    for line in sys.stdin:
        turn = orjson.loads(line)
        _say(_timed(work, answer, turn["workload"], turn["seed"]))
    stop()


def _timed(work: GpuWork, answer: Answer, name: str, seed: int) -> dict[str, Any]:
    workload = next(one for one in work.workloads if one.name == name)
    asked = workload.draw(workload.rows, seed=seed)
    began = time.perf_counter()
    rows, tokens = answer(asked)
    seconds = time.perf_counter() - began
    if (rows, tokens) != (workload.rows, workload.rows * work.tokens):
        raise SystemExit(f"{name}: {rows} rows of {workload.rows}, {tokens} tokens")
    return {"seconds": seconds, "rows": rows}


def _say(found: dict[str, Any]) -> None:
    print("\n" + orjson.dumps(found).decode(), flush=True)  # an engine's core may have left a line open


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(ENGINES))
    parser.add_argument("work", type=Path)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
