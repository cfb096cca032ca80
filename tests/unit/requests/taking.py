"""Inputs taken in, and what came of them: for tests of the formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.errors import InputError, Problem
from dray.kinds import Kind
from dray.requests.ingest import Ingested, cut, ingest
from dray.requests.reading.readers import ReadLimits
from dray.requests.sources import Source
from dray.requests.spool.spool import decode, read_shard
from tests.support.sources import source_of

FIELD_OF = {Kind.CHAT.url: "messages", Kind.COMPLETION.url: "prompt"}


def take(folder: Path, source: Source, **options: Any) -> Ingested:
    return ingest(source, spool_uri=str(folder / "job" / "spool.jsonl"), **options)


def asked(ingested: Ingested) -> list[tuple[str, Any]]:
    """The id of each request, and its prompt or its messages."""
    found = []
    for part in cut(ingested, target_rows=1000):
        for chunk in read_shard(part.uri, part.offset, part.length):
            found += [(r.custom_id, r.body[FIELD_OF[r.url]]) for r in map(decode, chunk)]
    return found


def prompts(folder: Path, *inputs: str, **options: Any) -> list[tuple[str, Any]]:
    return asked(take(folder, source_of(inputs, kind=Kind.COMPLETION, **options)))


def problems(folder: Path, *inputs: str, limits: ReadLimits | None = None, **options: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        take(folder, source_of(inputs, kind=Kind.COMPLETION, **options), limits=limits)
    assert list(folder.glob("job/*")) == []
    return list(caught.value.problems)
