"""vLLM's engines on spot nodes that are killed or taken back, again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import Job, wait_for_release
from tests.support.command import ROOT, Command
from tests.support.spot_nodes import SpotNodes

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(7200)]

MODEL = ROOT / "examples/tickets/model"
TICKETS = ROOT / "examples/tickets/requests.jsonl"
ROWS = 600
SPOT = 2


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[SpotNodes]:
    found = SpotNodes.beside_a_head(tmp_path / "raylets", SPOT)
    yield found
    found.close()


@pytest.mark.parametrize("core", ["inside", "apart"])
def test_vllm_on_nodes_that_are_killed_or_taken_back(
    cloud: SpotNodes, tmp_path: Path, rng: random.Random, chaos_rounds: int, core: str
) -> None:
    """Two jobs a round; each has a node taken from it while its engines run, and gets another."""
    pytest.importorskip("vllm")
    tickets = tmp_path / "tickets.jsonl"
    tickets.write_text("".join(TICKETS.read_text().splitlines(keepends=True)[:ROWS]))
    expected: bytes | None = None
    for number in range(2 * chaos_rounds):
        cloud.refill()
        job = Job(
            raylets=cloud.raylets,
            folder=tmp_path / f"job-{number}",
            rows=ROWS,
            inputs=tickets,
            replicas=SPOT,
            engine="vllm",
            model=str(MODEL),
            settings=("max_num_seqs=16", f"engine_core={core}"),
            more=("--shard-rows", "75"),
        )
        run = job.start()
        job.until_committed(run, rng.randrange(1, ROWS // 2))
        fault = _take_one(cloud, job, run, rng)
        cloud.refill()
        figures = job.finished(run, 400)
        print(f"job {number}, {fault}: {figures}")
        assert job.causes() <= ({"NODE_LOSS"} if fault == "killed" else {"SPOT"})
        assert {charge.budget for charge in job.charges()} <= (
            {"infra", "node"} if fault == "killed" else set()
        )
        answers = (job.output / "output.jsonl").read_bytes()
        assert answers.count(b"\n") == ROWS
        expected = expected or answers
        assert _ids(answers) == _ids(expected)
        run.assert_nothing_left()


def _take_one(cloud: SpotNodes, job: Job, run: Command, rng: random.Random) -> str:
    """A node goes: at once, when it has been emptied, or while it is."""
    node = job.node_at_work(run)
    fault = rng.choice(("killed", "notice, obeyed", "notice, killed soon"))
    if fault != "killed":
        cloud.announce(node)
        name = cloud.raylets.nodes[node]
        if fault == "notice, obeyed":
            assert wait_for_release(job, name, 30) <= 15
        else:
            run.until(lambda: bool(job.notices()), what="the notice")
    cloud.kill(node)
    return fault


def _ids(answers: bytes) -> list[bytes]:
    return [line.partition(b'"custom_id":')[2].partition(b",")[0] for line in answers.splitlines()]
