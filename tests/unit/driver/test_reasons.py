"""The reason that the store keeps of a job's end: what and where, and nothing of a row."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from dray.cli.facts import facts_of
from dray.cli.wording import status_lines
from dray.driver.resting import put_to_rest
from dray.driver.telling.reasons import reason_of
from dray.errors import (
    ClusterError,
    ConfigError,
    EngineDeadError,
    EngineStartError,
    InputError,
    JobPausedError,
    Problem,
    RequestRefused,
)
from dray.job.beginning.opening import open_job
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.storage.files import FULL
from dray.store import open_store

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConfigError("store URL: it cannot be read\nmore"), "store URL: it cannot be read"),
        (
            EngineStartError("m: KeyError: 'x' at http://me:word@host/a"),
            "m: KeyError: 'x' at http://***@host/a",
        ),
        (ClusterError("no cluster"), "no cluster"),
        (JobPausedError("the disk is full"), "the disk is full"),
        (KeyError("words of a row"), "KeyError"),
        (OSError(errno.ENOSPC, "words of a row"), FULL),
        (EngineDeadError("words"), "EngineDeadError"),
        (RequestRefused("unknown_field", "words of a row"), "RequestRefused"),
        (InputError([]), "the input was refused"),
        (
            InputError([Problem("query_failed", "words", "postgresql://me:***@host/db")]),
            "the input was refused: the query: query_failed",
        ),
        (
            InputError([Problem("unreadable_input", "words", "s3://bucket/in.jsonl")]),
            "the input was refused: s3://bucket/in.jsonl: unreadable_input",
        ),
        *(
            (
                InputError([Problem("invalid_json", "words", f"hf://{name}", 3)]),
                f"the input was refused: hf://{name}:3: invalid_json",
            )
            for name in ("org/model", "datasets/org/set@main/in.jsonl", "datasets/org/set@refs/pr/1/a@b.csv")
        ),
        (InputError([Problem("query_failed", "words")]), "the input was refused: query_failed"),
        (
            InputError([Problem("invalid_json", "words", "in.jsonl", 3, "words")], total=21),
            "the input was refused: in.jsonl:3: invalid_json, and 20 more",
        ),
    ],
)
def test_reasons(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_the_status_of_a_job_whose_input_was_refused(
    make_settings: Callable[..., JobSettings], job_input: Path
) -> None:
    job_input.write_text('{"custom_id": "a", "confidential": 1\n')
    settings = make_settings(job_id="job")
    job = open_job(settings)
    with pytest.raises(InputError) as caught:
        ingest_job(job, replicas=1)
    put_to_rest(job, caught.value, release=True)
    with open_store(settings.store_url, create=False) as store:
        lines = status_lines(facts_of(store, store.get_job("job")), now=store.now(), store="out")
    assert lines[0] == "job       job  failed"
    assert f"reason    the input was refused: {job_input}:1: invalid_json" in lines
    assert "rows      none: the input was refused" in lines
    assert lines[-1] == "next      mend the input, then `dray resume job --store out` reads it again"
    assert not [line for line in lines if "confidential" in line or "being read" in line]
