"""Videos through ``dray run`` with vLLM on Ray: as files that rows name, and as cells of a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.command import ROOT, dray, run_arguments
from tests.support.watching_model import asking, film, write_torchvision, write_watching_model

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

CLIPS = 8
QUESTION = "what happens?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm")
    return write_watching_model(tmp_path_factory.mktemp("model") / "watching")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for number in range(CLIPS):
        (folder / f"{number}.mp4").write_bytes(film(number))
    (folder / "bad.mp4").write_bytes(b"no video")
    return folder


def run(folder: Path, inputs: Path, model: Path, *options: str) -> dict[str, str]:
    """The answers by id; rows without one have their error's code."""
    packages = os.pathsep.join([str(ROOT), str(write_torchvision(folder.parent / "packages"))])
    arguments = run_arguments(inputs, folder / "out", *options, engine="vllm", model=str(model))
    ended = dray(folder, *arguments, timeout=300, environment={"PYTHONPATH": packages})
    assert ended.code == 0, ended.stderr
    found = {}
    for name in ("output", "errors"):
        for line in (folder / "out" / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            error, body = row["error"], row["response"]["body"]
            found[row["custom_id"]] = error["code"] if error else body["choices"][0]["message"]["content"]
    return found


@pytest.mark.heavy
def test_files_and_cells_get_the_same_answers(tmp_path: Path, model: Path, clips: Path) -> None:
    names = [*(f"{number}.mp4" for number in range(CLIPS)), "bad.mp4", "gone.mp4"]
    envelope = {"method": "POST", "url": "/v1/chat/completions"}
    lines = ({"custom_id": name, **envelope, "body": asking(f"url:{name}", QUESTION)} for name in names)
    requests = tmp_path / "requests.jsonl"
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cells = [{"bytes": (clips / name).read_bytes(), "path": None} for name in names[:-1]]
    columns: dict[str, list[Any]] = {"id": names[:-1], "q": [QUESTION] * len(cells), "video": cells}
    parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    named = run(tmp_path / "named", requests, model, "--video-root", str(clips))
    held = run(
        tmp_path / "held",
        tmp_path / "table.parquet",
        model,
        *("--prompt-column", "q", "--video-column", "video", "--id-column", "id"),
        *("--max-tokens", "8", "--temperature", "0", "--engine-arg", "engine_core=apart"),
    )
    assert (named["bad.mp4"], named.pop("gone.mp4")) == ("invalid_video", "video_not_found")
    assert named == held
    assert len(set(named.values())) > CLIPS / 2, "the answers say nothing of the videos"
