"""Chats with sound through ``dray run`` with vLLM on Ray: files that a table names, and sounds in rows."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.answered import answered
from tests.support.listening_model import write_listening_model
from tests.support.speech_model import sound

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy, pytest.mark.timeout(900)]

FILES = 12
QUESTION = "who is it?"
ENGINE = (
    *("--engine-arg", "max_num_seqs=4", "--engine-arg", "max_model_len=1024"),
    *("--engine-arg", "kv_cache_memory_bytes=67108864", "--max-tokens", "8", "--temperature", "0"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm")
    return write_listening_model(tmp_path_factory.mktemp("model") / "listening")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calls")
    for number in range(FILES):
        form = ("WAV", "FLAC", "OGG")[number % 3]
        (folder / f"{number}.wav").write_bytes(sound(number, seconds=1 + number / 4, form=form))
    (folder / "bad.wav").write_bytes(b"no sound")
    return folder


def run(folder: Path, inputs: Path, model: Path, *options: str) -> dict[str, str]:
    return answered(folder, inputs, model, *options, *ENGINE)


def asked(content: bytes) -> dict[str, Any]:
    """A body in OpenAI's form."""
    held = {"data": b64encode(content).decode(), "format": "wav"}
    parts = [{"type": "input_audio", "input_audio": held}, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": parts}]}


def test_names_cells_and_openais_form_get_the_same_answers(tmp_path: Path, model: Path, folder: Path) -> None:
    names = [*(f"{number}.wav" for number in range(FILES)), "bad.wav", "gone.wav"]
    table, cells, requests = (tmp_path / name for name in ("calls.csv", "calls.parquet", "requests.jsonl"))
    table.write_text("file,q\n" + "".join(f"{name},{QUESTION}\n" for name in names))
    here = names[:-1]
    files: list[Any] = [{"bytes": (folder / name).read_bytes(), "path": None} for name in here]
    parquet.write_table(
        pyarrow.table({"id": here, "q": [QUESTION] * len(here), "audio": [[file] for file in files]}), cells
    )
    rows = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": asked(file["bytes"])}
        for name, file in zip(here, files, strict=True)
    ]
    requests.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = run(
        tmp_path / "named", table, model, "--prompt-column", "q", "--audio-column", "file", "--audio-root",
        str(folder), "--id-column", "file",
    )  # fmt: skip
    assert (named["bad.wav"], named.pop("gone.wav")) == ("invalid_audio", "audio_not_found")
    assert len(set(named.values())) > FILES / 2, "the answers say nothing of the sounds"
    held = run(
        tmp_path / "held", cells, model, "--prompt-column", "q", "--audio-column", "audio", "--id-column",
        "id", "--engine-arg", "engine_core=apart",
    )  # fmt: skip
    assert held == named
    assert run(tmp_path / "requests", requests, model) == named
