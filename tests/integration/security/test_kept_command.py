"""Ray keeps the command of each driver, and shows it to all who may list the cluster's jobs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

JOIN = """
from dray.cluster import ClusterSettings, open_cluster
cluster = open_cluster(ClusterSettings(num_cpus=1))
cluster.start()
info = cluster.wait()
from ray._raylet import GcsClient
print(*(one.entrypoint for one in GcsClient(address=info.address).get_all_job_info().values()), sep="\\n")
cluster.release()
"""


def test_the_command_that_ray_keeps_shows_no_password() -> None:
    words = ["run", "in.jsonl", "--store", "postgresql://me:hidden-word@h/db", "--replicas", "2"]
    words += [
        "--store=postgresql://h/db?password=hidden-word",
        "https://h/x.jsonl?X-Amz-Signature=hidden-word",
    ]
    done = subprocess.run(
        [sys.executable, "-c", JOIN, *words], capture_output=True, text=True, timeout=120, check=True
    )
    assert "run in.jsonl --store *** --replicas 2 --store=*** ***" in done.stdout
    assert "hidden-word" not in done.stdout
