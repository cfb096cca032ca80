"""What a whole ``dray run`` with vLLM made of chats, by the ids of their rows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import dray, run_arguments


def answered(
    folder: Path, inputs: Path, model: Path, *options: str, environment: dict[str, str] | None = None
) -> dict[str, str]:
    """The texts of the answers; rows without one have their error's code."""
    arguments = run_arguments(inputs, folder / "out", *options, engine="vllm", model=str(model))
    ended = dray(folder, *arguments, timeout=400, environment=environment or {})
    assert ended.code == 0, ended.stderr
    found = {}
    for name in ("output", "errors"):
        for line in (folder / "out" / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            error, body = row["error"], row["response"]["body"]
            found[row["custom_id"]] = error["code"] if error else body["choices"][0]["message"]["content"]
    return found
