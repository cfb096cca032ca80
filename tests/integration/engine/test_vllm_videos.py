"""Chats with videos on a model that sees them: the answers of ``LLM.chat``, row by row.

Both run in processes of their own, where torchvision may have a stand-in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.seeing_model import as_url as picture_url
from tests.support.seeing_model import picture
from tests.support.watching_model import asking, film, write_torchvision, write_watching_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
WITH_LLM_CHAT = """
from vllm import LLM, SamplingParams
llm = LLM(given["model"], dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=16,
          kv_cache_memory_bytes=128 << 20, distributed_executor_backend="uni")
found = [llm.chat(one["messages"], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0]
         for one in given["rows"]]
found = [[list(one.prompt_token_ids), list(one.outputs[0].token_ids)] for one in found]
"""
WITH_DRAY = """
from tests.support.engines import generation_spec, running
found = []
with running(generation_spec(given["model"], max_model_len=1024, **given["arguments"])) as runner:
    for one in runner.run(given["rows"]):
        answer = json.loads(one.response) if one.response else None
        found.append([answer["prompt_token_ids"], answer["choices"][0]["token_ids"]] if answer
                     else [one.error_code, one.error_message])
"""


@cache
def films() -> list[bytes]:
    """Five, of three formats."""
    return [
        film(number, frames=12 + 4 * number, form=("mp4", "webm", "avi")[number % 3]) for number in range(5)
    ]


def watched() -> list[Any]:
    """The videos of each row: one, two, two in another order, none, and one frame by frame."""
    one = films()
    frames = [b64encode(picture(number, form="JPEG", size=(56, 56))).decode() for number in range(6)]
    by_frames = "url:data:video/jpeg;base64," + ",".join(frames)
    return [*([file] for file in one), one[:2], one[1::-1], [], [by_frames], [one[2]]]


def damaged() -> list[Any]:
    return [[b"no video"], [film(1)[:60]], [film(9, frames=1)], ["url:data:video/mp4;base64,!!"]]


def rows_about(seen: list[Any]) -> list[dict[str, Any]]:
    return [
        asking(*files, f"what is it? {number % 3}", return_token_ids=True)
        for number, files in enumerate(seen)
    ]


def with_image() -> dict[str, Any]:
    body = asking(films()[0], "what is it?", return_token_ids=True)
    url = picture_url(picture(1, size=(56, 56)))
    body["messages"][0]["content"].append({"type": "image_url", "image_url": {"url": url}})
    return body


@pytest.fixture(scope="session")
def watching_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_watching_model(tmp_path_factory.mktemp("model") / "watching")


def ran(script: str, folder: Path, model: Path, rows: list[dict[str, Any]], **arguments: Any) -> list[Any]:
    given, written = folder / "given.json", folder / "written.json"
    given.write_text(json.dumps({"model": str(model), "rows": rows, "arguments": arguments}))
    begin = "import json, sys\ngiven = json.load(open(sys.argv[1]))"
    end = 'json.dump(found, open(sys.argv[2], "w"))'
    packages = os.pathsep.join([str(ROOT), str(write_torchvision(folder))])
    environment = {
        **os.environ,
        **{"PYTHONPATH": packages, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # LLM.chat then starts no other processes
    }
    ended = subprocess.run(
        [sys.executable, "-c", f"{begin}\n{script}\n{end}", str(given), str(written)],
        env=environment,
        timeout=280,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: list[Any] = json.loads(written.read_text())
    return found


@pytest.mark.heavy
def test_answers_are_those_of_llm_chat_and_a_bad_video_costs_its_row_alone(
    watching_model: Path, tmp_path: Path
) -> None:
    """One video or two, of three formats or frame by frame, an image beside one, and damaged ones between."""
    good = [*rows_about(watched()), with_image()]
    bad = rows_about(damaged())
    found = ran(WITH_DRAY, tmp_path, watching_model, [good[0], *bad, *good[1:]])
    answers = [found[0], *found[1 + len(bad) :]]
    assert answers == ran(WITH_LLM_CHAT, tmp_path, watching_model, good)
    assert len({tuple(tokens) for _, tokens in answers}) > 7, "the answers say nothing of the videos"
    assert [code for code, _ in found[1 : 1 + len(bad)]] == ["invalid_video"] * len(bad)


@pytest.mark.heavy
def test_the_core_apart_gives_the_same_answers(watching_model: Path, tmp_path: Path) -> None:
    rows = [*rows_about(watched()), with_image(), asking(b"none", "x")]
    (tmp_path / "apart").mkdir()
    apart = ran(WITH_DRAY, tmp_path / "apart", watching_model, rows, engine_core="apart")
    assert ran(WITH_DRAY, tmp_path, watching_model, rows, image_threads=0) == apart


@pytest.mark.heavy
def test_a_model_that_is_left_no_video_takes_none(watching_model: Path, tmp_path: Path) -> None:
    limits = {"limit_mm_per_prompt": {"video": 0, "image": 2}}
    seen, other = ran(WITH_DRAY, tmp_path, watching_model, [asking(films()[0], "x"), with_image()], **limits)
    told = ["unsupported_content", "messages can hold parts of text, and images, only"]
    assert seen == other == told
