"""A kind of requests that dray does not have, added as one row of the table, from the input to the files.

It is about what a row for OpenAI's /v1/moderations would be. No module of dray is patched: whatever asks for
a kind by name anywhere else would fail here.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from dray.cluster.placing import shrunk
from dray.engine.admission import sequences_of
from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.errors import InputError, RequestRefused
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import engine_kind, ingest_job
from dray.kinds import KINDS, Body, EngineKind, Kind, OutputColumn, count_prompts, kind_named
from dray.requests.model import Outcome, Request
from dray.requests.sources import RowDefaults
from dray.requests.spool.spool import encode, read_shard
from dray.shard.proof import prove
from dray.store import open_store
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]


def _body(prompt: str) -> Body:
    return {"rules": "of the job", "statements": prompt}


def _prompts(body: Body) -> tuple[str, int]:
    return "statements", count_prompts(body.get("statements"))


def _simulated(body: Body, text: str, digest: str) -> Body:
    return {"object": "list", "data": [{"index": 0, "object": "harm", "harm": int(digest[:2], 16) / 256}]}


def _harm(body: Body) -> float | None:
    data = body.get("data")
    found: float | None = data[0].get("harm") if data else None
    return found


MODERATING = EngineKind(
    name="moderation",
    does="moderates",
    serving="tests.unit.job.test_invented_kind:Serving",
    arguments={"runner": "pooling", "convert": "classify"},
    generates=False,
    splits_prompts=False,
)
MODERATION = Kind(
    name="moderation",
    url="/v1/moderations",
    engine=MODERATING,
    texts=("rules", "statements"),
    body=_body,
    prompts=_prompts,
    proof={"rules": "Say yes.", "statements": "yes"},
    simulated=_simulated,
    columns=(OutputColumn(name="harm", type="number", read=_harm),),
)


@pytest.fixture(autouse=True)
def moderation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, MODERATION.url, MODERATION)


def _line(number: int, url: str = MODERATION.url, **body: Any) -> str:
    body = body or {"rules": f"rule {number}", "statements": [f"statement {number}", "another"]}
    return json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}) + "\n"


@pytest.fixture
def replica() -> Iterator[Replica]:
    spec = EngineSpec(name="simulated", model="m", kind=MODERATION)
    replica = Replica("r", pickle.loads(pickle.dumps(spec)), exit_when_dead=False)
    replica.ready()
    yield replica
    replica.stop()


def _answer(replica: Replica, lines: list[bytes]) -> list[Outcome]:
    replica.feed("s", lines, last=True)
    return [outcome for batch in replica.results("s", 64, 0.01) for outcome in batch]


def _run(job: OpenJob, replica: Replica) -> None:
    """All shards of the job, and its files."""
    with open_store(job.settings.store_url, create=False) as store:
        for shard in ingest_job(job, replicas=1):
            lease = store.claim_shard(job.lease, shard.number, owner="test")
            assert lease is not None
            lines = [line for chunk in read_shard(shard.uri, shard.offset, shard.length) for line in chunk]
            prove(replica, "s", lines[0])
            store.commit(lease, _answer(replica, lines))
            store.finish_shard(lease)
        assert engine_kind(store, job) == (MODERATION, None)
    finalise_job(job, Timeline())


def test_a_batch_of_it_runs_from_input_to_parquet(
    make_settings: MakeSettings, job_input: Path, replica: Replica
) -> None:
    job_input.write_text("".join(map(_line, range(20))))
    sampling = RowDefaults(sampling={"temperature": 0})  # an engine that moderates takes none
    _run(job := open_job(make_settings(format="parquet", defaults=sampling)), replica)
    table = parquet.read_table(Path(job.settings.output) / "output.parquet")
    rows = table.to_pylist()
    assert table.column_names[2:6] == ["text", "embedding", "score", "label"]
    assert table.column_names[6:8] == ["harm", "finish_reason"]
    assert [row["custom_id"] for row in rows] == [f"row-{number}" for number in range(20)]
    assert all(
        0 <= row["harm"] < 1 and row["score"] is None and row["text"] is None and row["embedding"] is None
        for row in rows
    )
    assert len({row["harm"] for row in rows}) > 10
    assert {row["completion_tokens"] for row in rows} == {0}


def test_columns_become_such_requests(make_settings: MakeSettings, tmp_path: Path, replica: Replica) -> None:
    (table := tmp_path / "in.csv").write_text("question\nwhy\nhow\n")
    source = source_of(str(table), kind=kind_named("moderation"), prompt_column="question")
    _run(job := open_job(make_settings(source=source)), replica)
    rows = [json.loads(line) for line in (Path(job.settings.output) / "output.jsonl").open()]
    assert [row["response"]["body"]["data"][0]["object"] for row in rows] == ["harm", "harm"]


@pytest.mark.parametrize("other", ["/v1/chat/completions", "/v1/embeddings"])
def test_one_job_runs_one_kind_of_engine(make_settings: MakeSettings, job_input: Path, other: str) -> None:
    job_input.write_text(_line(0) + _line(1, other, messages=[{"role": "user", "content": "a"}], input="a"))
    with pytest.raises(InputError, match="one engine cannot do both"):
        ingest_job(open_job(make_settings()), replicas=1)


def test_an_unknown_url_is_told_with_it(make_settings: MakeSettings, job_input: Path) -> None:
    job_input.write_text(_line(0, "/v1/realtime"))
    with pytest.raises(InputError, match=r"it offers .*/v1/embeddings, .*/v1/moderations"):
        ingest_job(open_job(make_settings()), replicas=1)


def test_what_a_row_takes_and_how_memory_shrinks() -> None:
    body = {"rules": "q", "statements": ["d"] * 7, "n": 9}
    pairs = Request(index=0, custom_id="a", url=MODERATION.url, body=body)
    assert sequences_of(pairs) == 7
    body["statements"] = ["d"] * 2049
    with pytest.raises(RequestRefused, match="`statements` holds 2,049 prompts"):
        sequences_of(pairs)
    less = shrunk(EngineSpec(name="vllm", model="m", kind=MODERATION), 1, 64)
    assert less.arguments == {"max_num_seqs": 32}


def test_the_proof_is_of_its_own_kind(replica: Replica) -> None:
    row = encode(Request(index=0, custom_id="a", url=MODERATION.url, body={"rules": "q", "statements": "d"}))
    [outcome] = _answer(replica, [row])
    assert orjson.loads(outcome.response or b"")["object"] == "list"
    prove(replica, "of-moderation", row)
