"""Scores and rankings through ``dray run`` with vLLM on Ray: out of columns, and as an OpenAI batch file."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.support.command import dray, run_arguments
from tests.support.judging_models import write_cross_encoder
from tests.support.tiny_model import sentence

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy, pytest.mark.timeout(600)]

PAIRS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm")
    return write_cross_encoder(tmp_path_factory.mktemp("model") / "cross-encoder")


def test_columns_and_a_batch_file_get_the_same_scores(tmp_path: Path, model: Path) -> None:
    rng = random.Random(2)
    pairs = [(sentence(rng, 5), sentence(rng, rng.randint(5, 40))) for _ in range(PAIRS)]
    (columns := tmp_path / "columns").mkdir()
    with (columns / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "passage"), *pairs])
    scored = [*("--kind", "score", "--prompt-column", "question", "--document-column", "passage")]
    arguments = run_arguments(
        columns / "pairs.csv",
        columns / "out",
        *scored,
        "--format",
        "parquet",
        engine="vllm",
        model=str(model),
    )
    ended = dray(columns, *arguments, timeout=300)
    assert ended.code == 0, ended.stderr
    scores = parquet.read_table(columns / "out" / "output.parquet")["score"].to_pylist()
    assert len(scores) == PAIRS
    assert len(set(scores)) > PAIRS / 2

    (batch := tmp_path / "batch").mkdir()
    with (batch / "requests.jsonl").open("w") as file:
        for number, (query, passage) in enumerate(pairs):
            body = {"query": query, "documents": [passage, "order"]}
            row = {"custom_id": f"row-{number}", "method": "POST", "url": "/v2/rerank", "body": body}
            file.write(json.dumps(row) + "\n")
        bad = {"custom_id": "bad", "method": "POST", "url": "/v1/score", "body": {"queries": "a"}}
        file.write(json.dumps(bad) + "\n")
    ended = dray(
        batch,
        *run_arguments(batch / "requests.jsonl", batch / "out", engine="vllm", model=str(model)),
        timeout=300,
    )
    assert ended.code == 0, ended.stderr
    ranked = [json.loads(line) for line in (batch / "out" / "output.jsonl").read_text().splitlines()]
    found = [
        one["relevance_score"]
        for row in ranked
        for one in row["response"]["body"]["results"]
        if one["index"] == 0
    ]
    assert found == pytest.approx(scores, abs=1e-5)
    [error] = (batch / "out" / "errors.jsonl").read_text().splitlines()
    assert json.loads(error)["error"]["code"] == "invalid_request"
