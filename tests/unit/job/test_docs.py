"""What the documents say in figures and commands is what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from dray.cluster.placing import USUAL_SEQS
from dray.driver.shard_tasks.idling import MOST_STANDBY
from dray.driver.shard_tasks.slots import LEAST_SLOTS, MOST_SLOTS
from dray.engine.admission import ADMISSION_FACTOR
from dray.engine.simulated import SimulatedSettings
from dray.job.rows.shard_sizes import MANY_SHARDS, ROWS
from dray.job.rows.spooling import PART_BYTES as SPOOL_BYTES
from dray.requests.spool.arranging import WINDOW_BYTES, WINDOW_ROWS
from dray.requests.spool.spool import MAX_MARKS
from dray.shard.lease import RENEW_EVERY
from dray.storage.layout import PART_BYTES
from dray.store.calls.shards import SHARD_TTL
from flows.parameters import EngineOptions

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
INTERRUPTIONS = " ".join((ROOT / "docs" / "interruptions.md").read_text().split())
OPERATING = " ".join((ROOT / "docs" / "operating.md").read_text().split())
SCALE = " ".join((ROOT / "docs" / "scale.md").read_text().split())
PAGES = sorted(str(page.relative_to(ROOT)) for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_seconds() -> None:
    assert f"`--stall-seconds`, {EngineOptions().stall_seconds:.0f} by default" in INTERRUPTIONS
    assert f"**shard lease** ({SHARD_TTL:.0f} s, renewed every {RENEW_EVERY:.0f} s)" in INTERRUPTIONS


def test_how_far_an_engine_is_fed_ahead() -> None:
    assert ADMISSION_FACTOR == 1.2
    assert "never more than `1.2 x max_num_seqs` in the engine" in INTERRUPTIONS
    engine = " ".join((ROOT / "docs" / "engine.md").read_text().split())
    assert "admits a fifth more sequences" in engine
    assert "costs at most 1.2 batches" in engine


def test_a_template_with_a_line_end_is_quoted_so_that_it_has_one() -> None:
    assert not re.search(r"--template '[^']*\\n", "".join((ROOT / page).read_text() for page in PAGES))


def test_how_shards_are_cut() -> None:
    assert f"hold at most {ROWS} rows" in OPERATING
    assert f"twice `max_num_seqs` ({USUAL_SEQS} where it is not given)" in OPERATING
    slots = {2: "Two", 3: "three", 4: "four"}
    assert f"{slots[LEAST_SLOTS]} to {slots[MOST_SLOTS]} run for each ready replica" in OPERATING


def test_figures_of_scale() -> None:
    assert f"`--part-bytes` ({PART_BYTES >> 30} GiB" in SCALE
    assert f"at most {SPOOL_BYTES >> 30} GiB (`PART_BYTES` in `dray/job/rows/spooling.py`)" in SCALE
    assert f"5 TB are {-(-5 * 10**12 // SPOOL_BYTES)} parts. - **Room.**" in SCALE
    assert f"for an object store | {2 * SPOOL_BYTES + WINDOW_BYTES >> 30} GiB: a part" in SCALE
    assert f"in windows of {WINDOW_ROWS:,} rows or {WINDOW_BYTES >> 30} GiB" in SCALE
    assert f"at most {ROWS} rows, up to {MANY_SHARDS:,} shards" in SCALE
    assert f"| {MAX_MARKS:,}, in {MAX_MARKS * 24 >> 20} MB |" in SCALE
    assert f"{LEAST_SLOTS} to {MOST_SLOTS} that run (`LEAST_SLOTS`, `MOST_SLOTS`), 1 that waits" in SCALE
    assert f"1 that waits, {MOST_STANDBY} for the whole job at most" in SCALE
    assert f"1 write in {RENEW_EVERY:.0f} s (lease)" in SCALE


def test_the_simulated_engine_takes_what_is_listed() -> None:
    page = (ROOT / "docs" / "engine.md").read_text().partition("## The simulated engine")[2]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")][1:]
    listed = {name: default.strip() for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed.keys() == {field.name for field in fields(SimulatedSettings)}
    plain = SimulatedSettings()
    assert all(float(told) == getattr(plain, name) for name, told in listed.items() if told.isdigit())


def test_causes_that_are_no_verdicts_are_told() -> None:
    assert "`DRIVER_LOST`, an attempt that the next driver found leased" in INTERRUPTIONS
