"""Jobs whose rows name images in an object store: the same answers as with the images in the rows.

The driver, the store and the shard tasks are real; the simulated engine's answers follow from the images.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.driver.whole_job import run_job
from dray.errors import ConfigError, JobPausedError
from dray.job.ending.result import JobResult
from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults
from dray.shard import media_files
from dray.shard.backoff import NO_WAIT_VARIABLE
from tests.support.lanes import parts_on
from tests.support.s3_emulator import EmulatorProcess
from tests.support.seeing_model import as_url, picture
from tests.support.sources import source_of
from tests.support.thread_fleet import Script, ThreadFleet

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROWS = 120
PICTURES = 10
ROOT = "s3://bucket/pictures"
Make = Callable[..., JobSettings]


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [picture(number) for number in range(PICTURES)]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory, files: list[bytes]) -> Iterator[EmulatorProcess]:
    root = tmp_path_factory.mktemp("s3")
    (root / "bucket" / "pictures").mkdir(parents=True)
    for number, content in enumerate(files):
        (root / "bucket" / "pictures" / f"{number}.png").write_bytes(content)
    process = EmulatorProcess(root)
    yield process
    process.stop()


@pytest.fixture
def make(emulator: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    monkeypatch.setattr(media_files, "_AGAIN", (0.1, 0.1))
    emulator.behave()

    def settings(name: str, images: list[str], **source: Any) -> JobSettings:
        table = tmp_path / f"{name}.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows(
                [("q", "image"), *((f"what is {row}?", image) for row, image in enumerate(images))]
            )
        return JobSettings(
            source=source_of(str(table), prompt_column="q", image_column="image", **source),
            defaults=RowDefaults(sampling={"max_tokens": 8}),
            model="simulated",
            engine="simulated",
            engine_arguments={"max_num_seqs": 8},
            replicas=2,
            shard_rows=30,
            job_id=name,
            output=str(tmp_path / name),
            store_url=f"sqlite:///{tmp_path}/jobs.db",
            objects=emulator.options,
        )

    yield settings
    emulator.behave()


def run(settings: JobSettings, script: Script | None = None) -> JobResult:
    fleet = ThreadFleet(["node-0", "node-1"], script)
    return run_job(settings, parts_on(fleet))


def finished(result: JobResult) -> tuple[int, int]:
    """Rows that were answered, and error rows."""
    return result.counts["done"], result.counts["failed"]


def answers(settings: JobSettings) -> list[str]:
    lines = (Path(settings.output) / "output.jsonl").read_text().splitlines()
    return [json.loads(line)["response"]["body"]["choices"][0]["message"]["content"] for line in lines]


def errors(settings: JobSettings) -> list[tuple[str, str]]:
    lines = (Path(settings.output) / "errors.jsonl").read_text().splitlines()
    return [(found["custom_id"], found["error"]["code"]) for found in map(json.loads, lines)]


def by_name(rows: int = ROWS) -> list[str]:
    return [f"{row % PICTURES}.png" for row in range(rows)]


def test_images_by_name_and_in_the_rows_give_the_same_answers(make: Make, files: list[bytes]) -> None:
    """One replica dies on the way: its rows are fed again, with their images."""
    named = make("named", by_name(), image_root=ROOT)
    held = make("held", [as_url(files[row % PICTURES]) for row in range(ROWS)])
    result = run(named, Script(lose=lambda replica, batch: (replica, batch) == (0, 1)))
    run(held)
    assert finished(result) == (ROWS, 0)
    assert answers(named) == answers(held)
    assert len(set(answers(named))) == ROWS


def test_rows_whose_images_are_missing_are_error_rows(make: Make) -> None:
    """Some rows of one shard, and a whole shard, of which no row goes to a replica."""
    images = by_name()
    for row in (3, 7, *range(30, 60)):
        images[row] = f"gone-{row}.png"
    settings = make("missing", images, image_root=ROOT)
    result = run(settings)
    assert finished(result) == (ROWS - 32, 32)
    assert errors(settings) == [(f"row-{row}", "image_not_found") for row in (3, 7, *range(30, 60))]


def test_a_store_that_answers_seldom_costs_time_and_no_row(make: Make, emulator: EmulatorProcess) -> None:
    settings = make("seldom", by_name(), image_root=ROOT)
    emulator.behave(busy_share=0.3, cut_share=0.1)
    result = run(settings)
    assert finished(result) == (ROWS, 0)


def test_keys_that_expire_pause_the_job_and_cost_no_row(make: Make, emulator: EmulatorProcess) -> None:
    """A store that refuses everything is not the rows' fault. With new keys the same command goes on."""
    settings = make("expired", by_name(), image_root=ROOT)
    emulator.behave(expires_after=20)
    with pytest.raises(
        JobPausedError, match=f"the images below {ROOT} cannot be read .PermissionError.; look at"
    ):
        run(settings)
    emulator.behave()
    assert finished(run(settings)) == (ROWS, 0)


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("s3://bucket/elsewhere", "there are no objects below it"),
        ("s3://gone/pictures", "image_root s3://gone/pictures"),
        ("/gone/pictures", "there is no such folder on this machine"),
    ],
)
def test_a_root_that_is_not_there_is_refused_before_anything_starts(
    make: Make, root: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(make("refused", by_name(3), image_root=root))
