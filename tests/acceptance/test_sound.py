"""Sound through ``dray run`` with vLLM on Ray: files that a table names, and the same in a batch file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.support.command import Command, committed, dray, run_arguments
from tests.support.speech_model import as_url, sound, write_speech_model

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy, pytest.mark.timeout(900)]

FILES = 40
ENGINE = ("--engine-arg", "max_num_seqs=4", "--engine-arg", "kv_cache_memory_bytes=67108864")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm")
    return write_speech_model(tmp_path_factory.mktemp("model") / "speech")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calls")
    for number in range(FILES):
        form = ("WAV", "FLAC", "OGG")[number % 3]
        (folder / f"{number}.wav").write_bytes(sound(number, seconds=65 if number == 7 else 2, form=form))
    (folder / "bad.wav").write_bytes(b"no sound")
    return folder


def answers(out: Path) -> dict[str, str]:
    """The texts by id; rows without one have their error's code."""
    found = {row["custom_id"]: row["text"] for row in parquet.read_table(out / "output.parquet").to_pylist()}
    errors = parquet.read_table(out / "errors.parquet").to_pylist()
    return found | {row["custom_id"]: row["code"] for row in errors}


def test_a_table_of_files_is_heard_across_a_kill(tmp_path: Path, model: Path, folder: Path) -> None:
    names = [*(f"{number}.wav" for number in range(FILES)), "bad.wav", "gone.wav"]
    table, requests = tmp_path / "calls.csv", tmp_path / "requests.jsonl"
    table.write_text("file\n" + "".join(f"{name}\n" for name in names))
    rows = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/audio/transcriptions",
            "body": {"file_url": as_url((folder / name).read_bytes()), "max_completion_tokens": 100},
        }
        for name in names[:-1]
    ]
    requests.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = run_arguments(
        table, tmp_path / "named", "--kind", "transcription", "--audio-column", "file", "--id-column", "file",
        "--audio-root", str(folder), "--max-tokens", "100", "--format", "parquet", *ENGINE,
        engine="vllm", model=str(model),
    )  # fmt: skip
    first = Command(arguments=named, folder=tmp_path / "first")
    first.until(lambda: committed(tmp_path / "named") > 0, timeout=300, what="the first commit")
    first.kill9()
    kept = committed(tmp_path / "named")
    assert 0 < kept < len(names)
    again = dray(tmp_path / "again", *named, timeout=400)
    assert again.code == 0, again.stderr
    held = run_arguments(
        requests, tmp_path / "held", "--format", "parquet", "--engine-arg", "engine_core=apart", *ENGINE,
        engine="vllm", model=str(model),
    )  # fmt: skip
    other = dray(tmp_path / "other", *held, timeout=400)
    assert other.code == 0, other.stderr
    found = answers(tmp_path / "named")
    assert (found["bad.wav"], found.pop("gone.wav")) == ("invalid_audio", "audio_not_found")
    assert found == answers(tmp_path / "held")
    assert len(set(found.values())) > FILES / 2, "the texts say nothing of the sounds"
