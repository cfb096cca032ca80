"""Ctrl-C in a user's own script, which has no Prefect server but what its first job starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.command import Command, committed, write_requests

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=9)]

_SCRIPT = """
import json
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions

def run(seconds):
    engine = EngineOptions(name="simulated", arguments={"seconds_per_token": seconds, "max_num_seqs": 2})
    return batch_inference(input="requests.jsonl", model="m", output="out", job_id="job", engine=engine)

try:
    run(0.3)
except KeyboardInterrupt:
    print(json.dumps(run(0.0).counts))
"""


def test_the_same_call_goes_on_after_an_interrupt_of_all_its_processes(tmp_path: Path) -> None:
    """As a terminal's Ctrl-C, or Jupyter's button: Prefect's server is signalled with the script."""
    write_requests(tmp_path / "requests.jsonl", 40)
    script = Command(arguments=("-c", _SCRIPT), folder=tmp_path, own_server=True, program=(sys.executable,))
    script.until(lambda: bool(committed(tmp_path / "out")), what="the first rows")
    script.interrupt()
    ended = script.wait()
    assert ended.code == 0, ended.stderr
    counts = json.loads(ended.stdout)
    assert counts["done"] == counts["total"] == 40
    assert counts["skipped"] > 0  # of the first run
    script.assert_nothing_left()
