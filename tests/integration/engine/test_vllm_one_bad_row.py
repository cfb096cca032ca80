"""One bad row on real vLLM: its step fails under that row, and dray's own request is answered before."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.engine import replica
from dray.engine.protocol import Engine, EngineSpec
from dray.engine.replica import build_engine
from dray.job.options.settings import JobSettings
from dray.requests.model import Outcome, Request
from dray.requests.sources import RowDefaults, source_of
from dray.requests.spool.spool import encode
from dray.shard.proof import prove
from tests.support.engines import Runner, request
from tests.support.lanes import MARK, Lanes, Takes, write_marked

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM"),
]


class _Watched:
    """A replica whose answers are kept."""

    def __init__(self, runner: Runner) -> None:
        self._replica, self.name = runner.replica, runner.replica.name
        self.answers: list[Outcome] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    def results(self, session: str, rows: int, seconds: float = 0.25) -> Any:
        for batch in self._replica.results(session, rows, seconds):
            self.answers += batch
            yield batch


def test_generation_answers_drays_own_request(generation: Runner) -> None:
    watched = _Watched(generation)
    prove(watched, generation.session(), encode(request(0, {"messages": []})))
    assert [row.error_code for row in watched.answers] == [None] * 3  # a chat, token ids, and a response


def test_an_embedding_engine_answers_drays_own_request(embedding: Runner) -> None:
    watched = _Watched(embedding)
    prove(watched, embedding.session(), encode(request(0, {"input": "x"})))
    assert [row.error_code for row in watched.answers] == [None]


@pytest.mark.parametrize(("takes", "engines"), [("memory", 5), ("engine", 3)])
@pytest.mark.heavy
def test_one_bad_row_of_one_is_an_error_row(
    takes: Takes, engines: int, lively_model: Path, tmp_path: Path
) -> None:
    # In a process of its own: the end of an engine takes vLLM's globals from others of its process.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        failure, errors, deaths = process.submit(_run, takes, lively_model, tmp_path).result(280)
    assert failure is None
    assert errors == {0: "out_of_memory" if takes == "memory" else "poison"}
    assert deaths == engines


def _run(takes: Takes, model: Path, folder: Path) -> tuple[str | None, dict[int, str], int]:
    """What a job of one bad row came to: why it failed, its error rows, and how many engines died."""
    replica.build_engine = _fragile
    settings = JobSettings(
        source=source_of([str(write_marked(folder / "in.jsonl", 1, {0}))]),
        defaults=RowDefaults(),
        model=str(model),
        output=str(folder / "out"),
        store_url=f"sqlite:///{folder / 'store.db'}",
        engine="vllm",
        engine_arguments={"max_num_seqs": 8, "max_model_len": 512, "kv_cache_memory_bytes": 16 << 20},
        job_id="job",
    )
    job = Lanes(settings, ["node-a"], takes=takes)
    job.run()
    return None if job.failure is None else str(job.failure), job.errors(), len(job.deaths)


def _fragile(spec: EngineSpec, tell_limits: Any = None) -> Engine:
    """vLLM, whose own step finds no memory while it holds a marked row."""
    import torch

    engine: Any = build_engine(spec, tell_limits)
    submit, step = engine.submit, engine._engine.step
    marked: list[int] = []

    def note(key: int, row: Request) -> Any:
        if MARK.encode() in orjson.dumps(row.body):
            marked.append(key)
        return submit(key, row)

    def fail() -> Any:
        if marked:
            raise torch.OutOfMemoryError("Tried to allocate 9.99 GiB")
        return step()

    engine.submit, engine._engine.step = note, fail
    found: Engine = engine
    return found
