"""Columns that stand beside the answers, from the input to the files, whatever happens to the job between."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy
import pytest

from dray.cli.app import run_app
from dray.cli.jobs import export_job
from dray.errors import JobFailedError
from dray.job.beginning.opening import open_job
from dray.job.deleting import delete_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.forms import EngineOptions
from dray.job.options.plan_file import identity_of
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.requests.outputs.files import Written, write_outputs
from dray.requests.sources import RowDefaults
from dray.requests.spool.spool import index_of
from dray.storage import ObjectStoreOptions
from dray.store import JobState, open_store
from tests.support.publishing import answer
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

ROWS = 30
LABELS = [{"label": f"l{number}"} for number in range(ROWS)]


@pytest.fixture
def settings(make_settings: Callable[..., JobSettings], tmp_path: Path) -> Callable[..., JobSettings]:
    """A job whose rows ask three things, each of them in turn: it may run in another order, and once each."""
    table = tmp_path / "in.csv"
    asked = [f"l{number},{'abc'[number % 3] * 400} prompt" for number in range(ROWS)]
    table.write_text("\n".join(["label,text", *asked]) + "\n")
    source = source_of(str(table), prompt_column="text", keep_columns=["label"])

    def make(**changes: Any) -> JobSettings:
        return make_settings(source=source, shard_rows=10, job_id="job", **changes)

    return make


def asking(**options: Any) -> JobRequest:
    return JobRequest(input=[], model="", output="", **options)


def kept_in(folder: str | Path) -> list[dict[str, str]]:
    lines = (Path(folder) / "output.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["custom_id"] for one in found] == [f"row-{number}" for number in range(ROWS)]
    return [one["row"] for one in found]


def next_driver(job: OpenJob, settings: JobSettings) -> OpenJob:
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    return open_job(settings)


@pytest.mark.parametrize("order", ["input", "prefix"])
def test_each_answer_has_its_row_s_columns(
    settings: Callable[..., JobSettings], order: Literal["input", "prefix"]
) -> None:
    job = open_job(settings(request=asking(engine=EngineOptions(order=order))))
    answer(job)
    spool = (Path(job.work) / "requests-1.jsonl").read_bytes().splitlines()
    assert (list(map(index_of, spool)) == list(range(ROWS))) == (order == "input")
    finalise_job(job, Timeline())
    assert kept_in(job.settings.output) == LABELS


def test_rows_that_share_an_answer_have_their_own(settings: Callable[..., JobSettings]) -> None:
    job = open_job(settings(request=asking(dedupe=True)))
    answer(job)
    with open_store(job.settings.store_url, create=False) as store:
        assert store.counts("job").done == 3
        after: int | None = -1
        while after is not None:
            after = store.answer_followers(job.lease, after).after
    finalise_job(job, Timeline())
    assert kept_in(job.settings.output) == LABELS


def test_the_next_driver_finds_them_and_the_same_run_again_writes_them_again(
    settings: Callable[..., JobSettings],
) -> None:
    job = open_job(settings())
    answer(job, 1)
    job = next_driver(job, settings())
    answer(job)
    finalise_job(job, Timeline())
    output = Path(job.settings.output) / "output.jsonl"
    first = output.read_bytes()
    output.unlink()
    again = next_driver(job, settings())
    answer(again)
    finalise_job(again, Timeline())
    assert output.read_bytes() == first
    assert kept_in(job.settings.output) == LABELS


def test_a_spool_that_is_lost_is_written_again_with_them(settings: Callable[..., JobSettings]) -> None:
    job = open_job(settings())
    answer(job, 1)
    for file in Path(job.work).iterdir():
        file.unlink()
    job = next_driver(job, settings())
    answer(job)
    finalise_job(job, Timeline())
    assert kept_in(job.settings.output) == LABELS


@pytest.mark.parametrize("answered", [1, None])
def test_they_are_read_again_where_they_alone_are_gone(
    settings: Callable[..., JobSettings], answered: int | None
) -> None:
    """Also for a job that is completed, whose user has removed dray's own folder."""
    job = open_job(settings())
    answer(job, answered)
    if not answered:
        finalise_job(job, Timeline())
    for file in Path(job.work).glob("*.kept" if answered else "*"):
        file.unlink()
    job = next_driver(job, settings())
    answer(job)
    finalise_job(job, Timeline())
    assert kept_in(job.settings.output) == LABELS
    with open_store(job.settings.store_url, create=False) as store:
        assert store.get_job("job").state is JobState.COMPLETED


def test_an_export_of_a_job_that_is_not_over_has_them(
    settings: Callable[..., JobSettings], tmp_path: Path
) -> None:
    job = open_job(settings())
    answer(job, 1)
    export_job("job", str(tmp_path / "some"), "jsonl", job.settings.store_url, json=False)
    found = [json.loads(line) for line in (tmp_path / "some" / "output.jsonl").read_text().splitlines()]
    assert [one["row"] for one in found] == LABELS[:10]


def test_a_data_frame_of_the_store_has_them(
    make_settings: Callable[..., JobSettings], tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"q": "a", "text": "mine", "n": 2**53 + 1, "f": None, "b": True, "shard": "s", "j": [1]},
        {"q": "b", "text": None, "n": None, "f": 0.5, "b": None, "shard": "t", "j": "x"},
    ]
    rows = [row | {"row_shard": number} for number, row in enumerate(rows, 3)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    kept = ["text", "n", "f", "b", "shard", "row_shard", "j"]
    source = source_of(str(tmp_path / "in.jsonl"), prompt_column="q", keep_columns=kept)
    job = open_job(make_settings(source=source, shard_rows=10, job_id="job"))
    with open_store(job.settings.store_url, create=False) as store:
        assert store.to_dataframe("job").empty
        answer(job)
        frame = store.to_dataframe("job")
        assert list(frame["custom_id"]) == ["row-0", "row-1"]
        found = frame[["row_text", "n", "f", "b", "row_row_shard", "row_shard", "j"]].astype(object)
        assert found.where(found.notna(), None).values.tolist() == [
            ["mine", 2**53 + 1, None, True, "s", 3, "[1]"],
            [None, None, 0.5, None, "t", 4, '"x"'],
        ]
        assert isinstance(frame["shard"].iloc[0], numpy.integer)
        alone = store.to_dataframe("job", kept=False)
        assert list(alone.columns) == list(frame.columns)[: len(alone.columns)]
        [file] = Path(job.work).glob("*.kept")
        file.unlink()
        with pytest.raises(JobFailedError, match="kept=False"):
            store.to_dataframe("job")
        assert store.to_dataframe("job", kept=False).equals(alone)


def test_columns_of_an_ingest_that_died_are_not_those_of_the_next(
    make_settings: Callable[..., JobSettings], settings: Callable[..., JobSettings]
) -> None:
    job = open_job(settings())
    with open_store(job.settings.store_url, create=False) as store:
        gone = {"uri": job.spool(1) + ".kept", "columns": [["label", "text"]]}
        store.merge_job_info(job.lease, {"kept": gone})
    again = make_settings(
        source=replace(settings().source, shape=replace(settings().source.shape, keep_columns=())),
        shard_rows=10,
        job_id="job",
    )
    job = next_driver(job, again)
    answer(job)
    finalise_job(job, Timeline())
    first, *_ = (Path(job.settings.output) / "output.jsonl").read_text().splitlines()
    assert "row" not in json.loads(first)


def test_answers_outlive_them(settings: Callable[..., JobSettings], tmp_path: Path) -> None:
    job = open_job(settings())
    answer(job)
    [kept] = Path(job.work).glob("*.kept")
    kept.unlink()
    with pytest.raises(JobFailedError, match="--without-kept"):
        finalise_job(job, Timeline())
    assert not (Path(job.settings.output) / "output.jsonl").exists()
    export_job("job", str(tmp_path / "all"), "jsonl", job.settings.store_url, kept=False, json=False)
    assert len((tmp_path / "all" / "output.jsonl").read_text().splitlines()) == ROWS


def test_an_export_reaches_buckets_by_a_block(
    settings: Callable[..., JobSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = open_job(settings())
    answer(job)
    options = ObjectStoreOptions(endpoint="http://127.0.0.1:9")
    written: list[dict[str, Any]] = []

    class Blocks(NoBlocks):
        def objects(self, name: str) -> ObjectStoreOptions:
            assert name == "keys"
            return options

    def write(pages: Any, **given: Any) -> Written:
        written.append(given)
        return write_outputs(pages, **given)

    monkeypatch.setattr("dray.cli.with_prefect.prefect_blocks", lambda: nullcontext(Blocks()))
    monkeypatch.setattr("dray.job.ending.exporting.write_outputs", write)
    folder = str(tmp_path / "all")
    command = [
        "export",
        "job",
        "--output",
        folder,
        "--store",
        job.settings.store_url,
        "--objects",
        "block:keys",
    ]
    assert run_app(command) == 0
    assert capsys.readouterr().out.splitlines() == [f"{folder}/output.jsonl", f"{folder}/errors.jsonl"]
    [given] = written
    assert (given["options"], given["kept"].options) == (options, options)
    assert len(kept_in(folder)) == ROWS


def test_a_job_that_is_deleted_leaves_none(settings: Callable[..., JobSettings]) -> None:
    job = open_job(settings())
    ingest_job(job, replicas=1)
    assert [one.name for one in Path(job.work).glob("*.kept")] == ["requests-1.jsonl.kept"]
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)
        delete_job(store, "job")
    assert not Path(job.work).exists()


def test_a_plan_holds_whichever_columns_are_kept(tmp_path: Path) -> None:
    table = tmp_path / "day=2026-11-27" / "in.csv"
    table.parent.mkdir()
    table.write_text("label,text\nx,prompt\n")
    sources = [
        source_of(str(table), prompt_column="text", keep_columns=keep) for keep in ([], ["label", "day"])
    ]
    one, other = (identity_of(source, RowDefaults(), None, None) for source in sources)
    assert one == other
