"""What is put through the engines: prompts, request files, and a place of their own for everything."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from tests.support.tiny_model import WORDS, sentence

MODEL_NAME = "tiny"
URLS = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}
# A run measured here must not reach a server, a cluster or a profile of the user's.
MADE = "DRAY_BENCHMARKS_PREFECT_DB"
"""A variable that names a database of Prefect's to begin with: it takes seconds to make one."""

_UNSET = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE", "RAY_ADDRESS")


def prompts(count: int, *, seed: int = 1, words: int = 30) -> list[str]:
    """Different prompts of about ``words`` words, so that no prefix cache helps anybody."""
    rng = random.Random(seed)
    return [f"{sentence(rng, words)} {index}" for index in range(count)]


SCHEMA = {
    "type": "object",
    "properties": {"summary": {"type": "string", "minLength": 300}, "refund": {"type": "boolean"}},
    "required": ["summary", "refund"],
    "additionalProperties": False,
}
"""Of an answer that is longer than any that is asked for."""


def body(prompt: str, kind: str, tokens: int, *, constrained: bool = False) -> dict[str, object]:
    """An OpenAI request body: greedy, and always to the last token; ``constrained`` to :data:`SCHEMA`."""
    asked: dict[str, object] = {
        "model": MODEL_NAME,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    if constrained:
        asked["structured_outputs"] = {"json": SCHEMA}
    if kind == "chat":
        return asked | {"messages": [{"role": "user", "content": prompt}]}
    return asked | {"prompt": prompt}


def write_batch(
    path: Path, kind: str, rows: int, tokens: int, *, words: int = 30, constrained: bool = False
) -> Path:
    """A file in OpenAI's batch format, of ``rows`` different prompts."""
    return write_prompts(path, prompts(rows, words=words), kind, tokens, constrained=constrained)


def write_prompts(
    path: Path, texts: Sequence[str], kind: str, tokens: int, *, constrained: bool = False
) -> Path:
    """The same of these prompts."""
    with path.open("wb") as file:
        for index, prompt in enumerate(texts):
            line = {"custom_id": f"r{index}", "method": "POST", "url": URLS[kind]}
            asked = body(prompt, kind, tokens, constrained=constrained)
            file.write(orjson.dumps(line | {"body": asked}) + b"\n")
    return path


def spool_lines(texts: Sequence[str], kind: str, tokens: int, *, constrained: bool = False) -> list[bytes]:
    """What a replica is fed for these prompts."""
    from dray.requests.model import Request
    from dray.requests.spool.spool import encode

    return [
        encode(
            Request(
                index=n,
                custom_id=f"r{n}",
                url=URLS[kind],
                body=body(text, kind, tokens, constrained=constrained),
            )
        )
        for n, text in enumerate(texts)
    ]


def write_large(path: Path, rows: int, *, size: int = 1024, seed: int = 2) -> Path:
    """``rows`` chat requests of about ``size`` bytes a line, with random ids, written as a stream."""
    rng = random.Random(seed)
    pool = " ".join(rng.choice(WORDS) for _ in range(100_000))
    with path.open("wb", buffering=1 << 20) as file:
        for index in range(rows):
            start = rng.randrange(len(pool) - size)
            text = f"{index} {pool[start : start + size - 180]}"
            line = {
                "custom_id": f"{rng.getrandbits(128):032x}",
                "method": "POST",
                "url": URLS["chat"],
                "body": {
                    "model": MODEL_NAME,
                    "messages": [{"role": "user", "content": text}],
                    "max_tokens": 16,
                },
            }
            file.write(orjson.dumps(line) + b"\n")
    return path


def count_lines(path: Path) -> int:
    """Lines of a file that may be large."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


@contextlib.contextmanager
def workspace(folder: Path | None) -> Iterator[Path]:
    """A temporary folder, removed at the end. SIGTERM ends in order too, so that no run is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="dray-bench-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def isolated(prefect_home: Path) -> dict[str, str]:
    """Environment of a measured process: nothing of the user's set-up, no telemetry, no model hub."""
    for name in _UNSET:
        os.environ.pop(name, None)
    if MADE in os.environ:
        prefect_home.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.environ[MADE], prefect_home)
    return {
        "PREFECT_HOME": str(prefect_home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


def dray_run(*arguments: str | Path) -> list[str | Path]:
    """The command line of ``dray run ... --json``, as installed beside this Python."""
    return [Path(sys.executable).with_name("dray"), "run", *arguments, "--json"]
