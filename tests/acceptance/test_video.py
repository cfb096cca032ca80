"""Videos through ``dray run`` with vLLM on Ray: as files that rows name, and as cells of a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.answered import answered
from tests.support.command import ROOT
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


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In which torchvision, or what stands in for it, can be imported."""
    packages = write_torchvision(tmp_path_factory.mktemp("packages"))
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])}


@pytest.mark.heavy
def test_files_and_cells_get_the_same_answers(
    tmp_path: Path, model: Path, clips: Path, environment: dict[str, str]
) -> None:
    names = [*(f"{number}.mp4" for number in range(CLIPS)), "bad.mp4", "gone.mp4"]
    envelope = {"method": "POST", "url": "/v1/chat/completions"}
    lines = ({"custom_id": name, **envelope, "body": asking(f"url:{name}", QUESTION)} for name in names)
    requests = tmp_path / "requests.jsonl"
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cells = [{"bytes": (clips / name).read_bytes(), "path": None} for name in names[:-1]]
    columns: dict[str, list[Any]] = {"id": names[:-1], "q": [QUESTION] * len(cells), "video": cells}
    parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    root = ("--video-root", str(clips))
    named = answered(tmp_path / "named", requests, model, *root, environment=environment)
    held = answered(
        tmp_path / "held",
        tmp_path / "table.parquet",
        model,
        *("--prompt-column", "q", "--video-column", "video", "--id-column", "id"),
        *("--max-tokens", "8", "--temperature", "0", "--engine-arg", "engine_core=apart"),
        environment=environment,
    )
    assert (named["bad.mp4"], named.pop("gone.mp4")) == ("invalid_video", "video_not_found")
    assert named == held
    assert len(set(named.values())) > CLIPS / 2, "the answers say nothing of the videos"
