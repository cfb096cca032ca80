"""``dray run`` from the wheel, in an environment of its own: no checkout, no Prefect server, the same job."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dray.store import JobState, open_store
from examples.tickets.generate import held_out_tickets
from tests.support.command import ROOT, Command, committed, run_arguments, write_requests

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy, pytest.mark.timeout(600)]

TICKETS = ROOT / "examples/tickets"
ROWS = 20
SLOW = ("seconds_per_token=0.1", "max_num_seqs=16")  # 20 rows/s


def _do(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel, what it asks for, and vLLM."""
    folder = tmp_path_factory.mktemp("wheel")
    _do(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    [wheel] = folder.glob("*.whl")
    _do("deployments/environment.sh", "wheel", wheel, folder / "environment")
    return folder / "environment"


class Wheel:
    """The command of an environment, in a folder."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.environment = environment
        self.folder = folder
        self._log = (folder / f"log-{number}" for number in itertools.count())

    def start(self, *arguments: str) -> Command:
        program = (str(self.environment / "bin" / "dray"),)
        return Command(arguments=arguments, folder=next(self._log), own_server=True, program=program)


@pytest.fixture
def wheel(environment: Path, tmp_path: Path) -> Wheel:
    return Wheel(environment, tmp_path)


def test_nothing_of_a_checkout_is_there(environment: Path, tmp_path: Path) -> None:
    code = """
import dray, importlib.util, json
there = [name for name in ("flows", "tasks", "blocks", "tests") if importlib.util.find_spec(name)]
print(json.dumps([dray.__file__, there]))
"""
    place, found = json.loads(_do(environment / "bin" / "python", "-c", code, cwd=tmp_path))
    assert Path(place).is_relative_to(environment)
    assert found == []
    told = json.loads(_do(environment / "bin" / "dray", "doctor", "--json", cwd=tmp_path).splitlines()[-1])
    assert told["ok"]


def test_rows_are_answered_by_vllm(wheel: Wheel) -> None:
    """As plain transformers answer them."""
    from examples.tickets.reference import greedy_answers, load

    lines = (TICKETS / "requests.jsonl").read_bytes().splitlines(keepends=True)[:ROWS]
    inputs = wheel.folder / "tickets.jsonl"
    inputs.write_bytes(b"".join(lines))
    output = wheel.folder / "out"
    arguments = run_arguments(inputs, output, engine="vllm", model=str(TICKETS / "model"))
    run = wheel.start(*arguments)
    ended = run.wait(400)
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"] == {"total": ROWS, "done": ROWS, "failed": 0, "skipped": 0}
    assert "without Prefect" in ended.stderr
    assert "Prefect is at" not in ended.stderr
    rows = [json.loads(line) for line in (output / "output.jsonl").read_text().splitlines()]
    answers = [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows]
    assert answers == greedy_answers(*load(), [ticket.text for ticket in held_out_tickets()[:ROWS]])
    assert (output / "report.html").is_file()
    run.assert_nothing_left()


def test_a_killed_run_is_resumed(wheel: Wheel) -> None:
    requests = write_requests(wheel.folder / "in.jsonl", 200)
    output = wheel.folder / "out"
    run = wheel.start(*run_arguments(requests, output, settings=SLOW))
    run.until(lambda: committed(output, "job") > 0, what="the first commit")
    run.kill9()
    kept = committed(output, "job")
    assert 0 < kept < 200
    run.assert_nothing_left(60)
    again = wheel.start("resume", "job", "--store", str(output), "--json")
    ended = again.wait()
    assert ended.code == 0, ended.stderr
    counts = ended.json["counts"]
    assert (counts["done"], counts["failed"], counts["total"]) == (200, 0, 200)
    assert counts["skipped"] >= kept
    assert (output / "output.jsonl").read_bytes().count(b"\n") == 200


def test_ctrl_c_keeps_what_is_finished(wheel: Wheel) -> None:
    requests = write_requests(wheel.folder / "in.jsonl", 400)
    output = wheel.folder / "out"
    run = wheel.start(*run_arguments(requests, output, settings=SLOW))
    run.until(lambda: committed(output, "job") > 0, what="the first commit")
    run.interrupt()
    ended = run.wait(60)
    assert ended.code == 130, ended.stderr
    assert ended.json["state"] == "cancelled"
    assert 0 < ended.json["counts"]["done"] < 400
    with open_store(str(output / "dray.db"), create=False) as store:
        assert store.get_job("job").state is JobState.CANCELLED
    run.assert_nothing_left()
