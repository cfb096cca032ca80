"""Images through ``dray run`` with vLLM on Ray: as files that rows name, and as cells of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.answered import answered
from tests.support.seeing_model import asking, picture, write_seeing_model

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy, pytest.mark.timeout(600)]

PICTURES = 12
QUESTION = "what is it?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm")
    return write_seeing_model(tmp_path_factory.mktemp("model") / "seeing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(PICTURES):
        (folder / f"{number}.png").write_bytes(picture(number))
    (folder / "bad.png").write_bytes(b"no image")
    return folder


def test_files_and_cells_get_the_same_answers(tmp_path: Path, model: Path, folder: Path) -> None:
    names = [*(f"{number}.png" for number in range(PICTURES)), "bad.png", "gone.png"]
    requests = tmp_path / "requests.jsonl"
    requests.write_text(
        "".join(
            json.dumps(
                {
                    "custom_id": name,
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": asking(f"url:{name}", QUESTION),
                }
            )
            + "\n"
            for name in names
        )
    )
    cells = [{"bytes": (folder / name).read_bytes(), "path": None} for name in names[:-1]]
    columns: dict[str, list[Any]] = {"id": names[:-1], "q": [QUESTION] * len(cells), "image": cells}
    parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    named = answered(tmp_path / "named", requests, model, "--image-root", str(folder))
    held = answered(
        tmp_path / "held",
        tmp_path / "table.parquet",
        model,
        *("--prompt-column", "q", "--image-column", "image", "--id-column", "id"),
        *("--max-tokens", "8", "--temperature", "0", "--engine-arg", "engine_core=apart"),
    )
    assert (named["bad.png"], named.pop("gone.png")) == ("invalid_image", "image_not_found")
    assert named == held
    assert len(set(named.values())) > PICTURES / 2, "the answers say nothing of the images"
