"""A whole job in one process, on threads: ``python -m tests.chaos.thread_job SETTINGS.json``.

The real driver, with shard tasks and simulated replicas as threads: a run takes a second and not half a
minute. Every point of ``dray/triggers.py`` is reached. One replica is lost in each run, one request kills
every engine that it is in, one gets an error row, and some are refused at ingest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dray.driver import whole_job
from dray.driver.replicas import pool
from dray.driver.shard_tasks import shards
from dray.job.beginning import opening
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows import spooling
from dray.requests.sources import RowDefaults
from dray.shard import placing, pump, verdicts
from dray.shard.backoff import NO_WAIT_VARIABLE
from tests.support.lanes import parts_on
from tests.support.sources import source_of
from tests.support.thread_fleet import Script, ThreadFleet

JOB = "job"
SHARD_ROWS = 40
IMAGES = "images"
"""A folder beside the input: if there is one, images that rows name lie there."""
PART_BYTES = 11_000
"""Of the spool: three parts, so that drivers are killed in between."""
MAX_NUM_SEQS = 8
MAX_MODEL_LEN = 1_000_000
LANES = 2
LOST = [(0, 1)]  # of the first replica of all the second micro-batch never comes
POISON = "kills engines"
REFUSED = "is refused"


def settings_of(path: Path) -> JobSettings:
    """The job that a file describes, as :func:`run` takes it."""
    return _settings(json.loads(path.read_text()))


def _settings(given: Mapping[str, Any]) -> JobSettings:
    images = Path(given["input"]).with_name(IMAGES)
    return JobSettings(
        source=source_of([given["input"]], image_root=str(images) if images.is_dir() else None),
        defaults=RowDefaults(sampling={"temperature": 0}),
        model="simulated",
        output=given["output"],
        store_url=given["store_url"],
        engine="simulated",
        engine_arguments={
            "max_num_seqs": MAX_NUM_SEQS,
            "max_model_len": MAX_MODEL_LEN,
            "oom_on": POISON,
            "error_on": REFUSED,
        },
        job_id=given.get("job", JOB),
        skip_invalid=True,
        shard_rows=given.get("shard_rows", SHARD_ROWS),
        replicas=given.get("lanes", LANES),
        request=JobRequest(
            input=[],
            model="",
            output="",
            dedupe=given.get("dedupe", False),
            reuse=given.get("reuse", False),
            overflow=given.get("overflow", "error"),
        ),
    )


def run(given: Mapping[str, Any]) -> None:
    """Run the job that is ``given``: ``input``, ``output`` and ``store_url``.

    It may also say how it is run: ``job``, ``shard_rows``, ``lanes``, which replicas are ``lost`` (pairs of a
    replica's number and of its micro-batch), the options ``dedupe``, ``reuse`` and
    ``overflow``, and the seconds of the driver's lease, ``driver_ttl``.
    """
    settings = _settings(given)
    # Several micro-batches a shard, so that a kill finds some of its rows committed and others not.
    pump.MICRO_BATCH_ROWS = MAX_NUM_SEQS
    spooling.PART_BYTES = PART_BYTES
    placing._ASK_EVERY = verdicts._ASK_EVERY = 0.02
    os.environ[NO_WAIT_VARIABLE] = "1"
    if "driver_ttl" in given:  # it is to lapse: a thread that renews it may be stopped in SQLite's only lock
        opening.DRIVER_TTL = given["driver_ttl"]
        whole_job.job_lease_kept = nullcontext  # type: ignore[assignment,attr-defined]
    if settings.replicas == 1:
        # One task at a time, for the same reason.
        pool.slots_of = lambda *_: 1  # type: ignore[attr-defined]
        pool.LEAST_SLOTS = shards.LEAST_SLOTS = 1  # type: ignore[attr-defined]
        shards.standby_of = lambda lanes: 0  # type: ignore[attr-defined]
    lost = {tuple(one) for one in given.get("lost", LOST)}
    fleet = ThreadFleet(
        [f"node-{lane}" for lane in range(settings.replicas or 1)],
        Script(lose=lambda replica, batch: (replica, batch) in lost),
    )
    whole_job.run_job(settings, parts_on(fleet))


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
