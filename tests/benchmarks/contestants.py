"""The engines that are compared, one a process: ``python -m tests.benchmarks.contestants NAME WORK.json``.

Each prints one JSON object on its last line: ``seconds`` (steady state), ``rows`` and ``tokens``.
All get the engine arguments that dray fills in on this machine (``arguments``), so that no setting
slows one of them, but for the log statistics: a peer that can do without them may.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tests.benchmarks.workload import SCHEMA, prompts, spool_lines

if TYPE_CHECKING:
    from dray.engine.protocol import EngineSpec

_WARM_UP = 64  # other prompts, before the clock starts


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one process is to do."""

    model: str
    kind: str
    rows: int
    tokens: int
    max_model_len: int
    input: str
    output: str
    engine: str = "vllm"  # dray's
    given: dict[str, Any] = field(default_factory=dict)  # engine arguments, of a user
    arguments: dict[str, Any] = field(default_factory=dict)  # all of them, as dray fills them in
    words: int = 30
    constrained: bool = False
    core_apart: bool = False  # vLLM's engine core in a process of its own, for those who leave that to vLLM
    batch_size: int = 64
    ray_cpus: int | None = None
    ray_folder: str | None = None

    def save(self, path: Path) -> Path:
        """Write it down for the process."""
        path.write_bytes(orjson.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> Work:
        """Read it in the process."""
        return cls(**orjson.loads(path.read_bytes()))


def engine_arguments(work: Work) -> dict[str, Any]:
    """What dray would give to vLLM for this model."""
    from dray.engine.model_folder import EngineModel
    from dray.engine.vllm_adapter.arguments import engine_arguments as filled_in

    with EngineModel(_spec(work)) as model:
        return {"arguments": filled_in(_spec(work), model.arguments(), cpu=True)}


def limit(work: Work) -> dict[str, Any]:
    """``LLM.generate`` (``LLM.chat``) in this process, without log statistics: nothing can be faster."""
    return _llm(work, {"disable_log_stats": True})


def limit_with_stats(work: Work) -> dict[str, Any]:
    """The same with exactly the engine arguments of dray, which needs the statistics for its timings."""
    return _llm(work, {})


def replica(work: Work) -> dict[str, Any]:
    """dray's replica without Ray around it."""
    from dray.engine.replica import Replica

    def lines(texts: list[str]) -> list[bytes]:
        return spool_lines(texts, work.kind, work.tokens, constrained=work.constrained)

    engine = Replica("replica", _spec(work), exit_when_dead=False)
    engine.ready()
    engine.feed("warm", lines(_prompts(work, _WARM_UP, seed=9)), True)
    for _batch in engine.results("warm", 256):
        pass
    asked = lines(_prompts(work, work.rows))
    rows = tokens = 0
    began = time.perf_counter()
    engine.feed("timed", asked, True)
    for batch in engine.results("timed", 256):
        rows += sum(not outcome.failed for outcome in batch)
        tokens += sum(outcome.completion_tokens or 0 for outcome in batch)
    seconds = time.perf_counter() - began
    engine.stop()
    return {"seconds": seconds, "rows": rows, "tokens": tokens}


def ray_data(work: Work) -> dict[str, Any]:
    """Ray Data LLM from a JSONL file to JSONL files; steady from the first request in its engine on."""
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    began = time.perf_counter()
    ray.init(
        address="local",
        num_cpus=work.ray_cpus,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=work.ray_folder,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    ready = time.perf_counter()
    arguments = {name: value for name, value in work.arguments.items() if name != "model"}
    config = vLLMEngineProcessorConfig(
        model_source=work.model,
        engine_kwargs=arguments,
        batch_size=work.batch_size,
        concurrency=1,
        accelerator_type=None,
        placement_group_config={"bundles": [{"CPU": 1}]},
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
        log_engine_metrics=False,
        runtime_env={"env_vars": _of_the_engine(work)},
    )
    sampling: dict[str, Any] = {"max_tokens": work.tokens, "temperature": 0.0, "ignore_eos": True}
    if work.constrained:
        sampling["structured_outputs"] = {"json": SCHEMA}
    processor = build_processor(config, preprocess=_asker(sampling), postprocess=_answered)
    processor(ray.data.read_json(work.input)).write_json(work.output)
    done = time.perf_counter()
    answers = _answers(Path(work.output))
    ray.shutdown()
    steady = max(answer["finished"] for answer in answers) - min(answer["arrived"] for answer in answers)
    finished = sorted(answer["finished"] for answer in answers)
    return {
        "seconds": steady,
        "pace": (len(finished) - 256) / (finished[-1] - finished[255]) if len(finished) > 256 else None,
        "rows": len(answers),
        "tokens": sum(answer["tokens"] for answer in answers),
        "parts": {"ray.init": ready - began, "dataset": done - ready},
    }


def _of_the_engine(work: Work) -> dict[str, str]:
    """Variables of an engine in Ray's worker, which has one thread of OpenMP for each core of its bundle."""
    from dray.engine.vllm_adapter.arguments import ENVIRONMENT

    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count())
    apart = str(int(work.core_apart))
    spin = "GOMP_SPINCOUNT"
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": apart, "OMP_NUM_THREADS": threads, spin: ENVIRONMENT[spin]}


def _asker(sampling: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def ask(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": row["body"]["prompt"], "sampling_params": sampling, "custom_id": row["custom_id"]}

    return ask


def _answered(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "custom_id": row["custom_id"],
        "text": row["generated_text"],
        "tokens": row["num_generated_tokens"],
        "arrived": row["metrics"]["arrival_time"],
        "finished": time.time(),
    }


def _answers(folder: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for file in sorted(folder.glob("*.json*")) for line in file.open("rb")]


def _llm(work: Work, changes: dict[str, Any]) -> dict[str, Any]:
    from dray.engine.vllm_adapter.arguments import prepare_environment

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(work.core_apart))
    prepare_environment(_spec(work))
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = LLM(**{**work.arguments, **changes})
    constraint = StructuredOutputsParams(json=SCHEMA) if work.constrained else None
    sampling = SamplingParams(
        max_tokens=work.tokens, temperature=0, ignore_eos=True, structured_outputs=constraint
    )
    asked = _prompts(work, work.rows)

    def answer(texts: list[str]) -> Any:
        if work.kind == "chat":
            talks: Any = [[{"role": "user", "content": text}] for text in texts]
            return llm.chat(talks, sampling, use_tqdm=False)
        return llm.generate(texts, sampling, use_tqdm=False)

    answer(_prompts(work, _WARM_UP, seed=9))
    began = time.perf_counter()
    outputs = answer(asked)
    seconds = time.perf_counter() - began
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {"seconds": seconds, "rows": len(outputs), "tokens": tokens}


def _spec(work: Work) -> EngineSpec:
    from dray.engine.protocol import EngineSpec
    from dray.kinds import kind_named

    return EngineSpec(
        name="vllm",
        model=work.model,
        kind=kind_named(work.kind),
        arguments={"max_model_len": work.max_model_len} | work.given,
    )


def _prompts(work: Work, count: int, *, seed: int = 1) -> list[str]:
    return prompts(count, seed=seed, words=work.words)


CONTESTANTS: dict[str, Callable[[Work], dict[str, Any]]] = {
    "engine-arguments": engine_arguments,
    "limit": limit,
    "limit-with-stats": limit_with_stats,
    "replica": replica,
    "ray-data": ray_data,
}


def main() -> None:
    """Run one contestant."""
    arguments = parse()
    result = CONTESTANTS[arguments.name](Work.load(arguments.work))
    print(orjson.dumps(result).decode(), flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(CONTESTANTS))
    parser.add_argument("work", type=Path)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
