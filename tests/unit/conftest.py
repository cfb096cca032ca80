"""Settings of a small job on the simulated engine, for tests of jobs and shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of


@pytest.fixture
def job_input(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        for number in range(50):
            body = {"messages": [{"role": "user", "content": f"prompt {number}"}], "max_tokens": 4}
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(json.dumps(line) + "\n")
    return path


@pytest.fixture
def make_settings(job_input: Path, tmp_path: Path) -> Callable[..., JobSettings]:
    def make(**changes: Any) -> JobSettings:
        values: dict[str, Any] = {
            "source": source_of([str(job_input)]),
            "defaults": RowDefaults(sampling={"temperature": 0}),
            "model": "simulated",
            "output": str(tmp_path / "out"),
            "store_url": f"sqlite:///{tmp_path / 'out' / 'dray.db'}",
            "engine": "simulated",
        }
        return JobSettings(**{**values, **changes})

    return make
