"""A model over several nodes: vLLM's ranks on two raylets, each of which fetches the model itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dray.engine.vllm_adapter.core.rank_memory import PREFIX
from dray.store import open_store
from dray.weights.source.publish import publish
from tests.support.command import Command, committed, run_arguments, write_requests
from tests.support.engines import write_lively_model
from tests.support.followers import FOLLOWER, LEADER, processes_on
from tests.support.raylets import Raylets, Shape
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

ROWS = 120
MODEL = "s3://bucket/lively"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
ENGINE = ("max_model_len=256", "max_num_seqs=8", "kv_cache_memory_bytes=67108864")
OVER_TWO = (*ENGINE, "tensor_parallel_size=2", "nnodes=2")
_RANK = ("spawn_main", "VLLM::Worker")  # in a rank's command line: at first, and once it runs
NOBIND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # by itself vLLM wants a NUMA node for each rank


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    pytest.importorskip("vllm")
    root = tmp_path_factory.mktemp("origin")
    folder = root / "bucket/lively"
    folder.mkdir(parents=True)
    write_lively_model(folder)
    publish(str(folder))
    server = EmulatorProcess(root)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    """A head without room for replicas, and two nodes with one processor each."""
    shape = Shape(head_cpus=0, cpus=1)
    found = Raylets(tmp_path_factory.mktemp("raylets"), 3, {**KEYS, **NOBIND}, shape=shape)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_requests(
        tmp_path_factory.mktemp("requests") / "in.jsonl", ROWS, max_tokens=64, temperature=0
    )


@pytest.fixture(scope="module")
def expected(
    store: EmulatorProcess, requests: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The answers of one rank on this machine."""
    folder = tmp_path_factory.mktemp("one")
    arguments = run_arguments(
        requests, folder / "out", engine="vllm", model=str(store.root / "bucket/lively"), settings=ENGINE
    )
    ended = Command(arguments=arguments, folder=folder).wait(300)
    assert ended.code == 0, ended.stderr[-6000:]
    return answers(folder)


@pytest.mark.heavy
@pytest.mark.parametrize("core", ["inside", "apart"])
def test_two_nodes_answer_as_one(
    core: str,
    store: EmulatorProcess,
    raylets: Raylets,
    requests: Path,
    expected: dict[str, str],
    tmp_path: Path,
) -> None:
    ended = _start(store, raylets, requests, tmp_path, core=core).wait(300)
    assert ended.code == 0, ended.stderr[-6000:]
    assert answers(tmp_path) == expected
    assert "each on 2 nodes with 1 CPU" in ended.stderr
    for node in (1, 2):
        assert [path for path in raylets.cache(node).iterdir() if len(path.name) == 64]
    with open_store(str(tmp_path / "out/dray.db"), create=False) as kept:
        spans = kept.spans("job")
    assert {span.node for span in spans} == set(raylets.nodes[1:])  # both are paid for


@pytest.mark.heavy
def test_a_part_that_is_killed_is_replaced_and_leaves_no_rank(
    store: EmulatorProcess, raylets: Raylets, requests: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    """Once as its ranks start, and once as they compute."""
    run = _start(store, raylets, requests, tmp_path, core="inside")
    _kill(_part(run, raylets))
    run.until(lambda: committed(tmp_path / "out") > 0, what="a committed row")
    part, memory = _part(run, raylets), _memory(raylets)
    assert memory
    _kill(part)
    ended = run.wait(400)
    assert ended.code == 0, ended.stderr[-6000:]
    assert answers(tmp_path) == expected
    assert not [path for path in memory if path.exists()]


def _part(run: Command, raylets: Raylets) -> psutil.Process:
    """The process of a part on another node, once it has started its ranks."""
    found: list[psutil.Process] = []

    def look() -> bool:
        found[:] = processes_on(raylets.nodes, FOLLOWER).values()
        below = [_command(process) for one in found for process in one.children()]
        return any(title in command for command in below for title in _RANK)

    run.until(look, 200, "a part with its ranks")
    return found[0]


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):  # it ends just now, or has
        return " ".join(process.cmdline())
    return ""


def _memory(raylets: Raylets) -> list[Path]:
    """What the replica's process and its ranks share. Python's helper, which would remove it, is killed."""
    (leader,) = processes_on(raylets.nodes, LEADER).values()
    family = [leader, *leader.children(recursive=True)]
    for process in family:
        if "resource_tracker" in _command(process):
            process.kill()
    pids = {str(process.pid) for process in family}
    return [path for path in Path("/dev/shm").glob(f"{PREFIX}*") if path.name.split("~")[2] in pids]


def _kill(part: psutil.Process) -> None:
    below = part.children(recursive=True)
    part.kill()
    _, left = psutil.wait_procs(below, timeout=10)
    assert not left, [one.cmdline() for one in left]


def _start(store: EmulatorProcess, raylets: Raylets, requests: Path, folder: Path, *, core: str) -> Command:
    environment = {
        **KEYS,
        **raylets.environment,
        "AWS_ENDPOINT_URL": store.url,
        "AWS_REGION": "us-east-1",
    }
    assert raylets.settings.address is not None
    arguments = run_arguments(
        requests,
        folder / "out",
        *("--cluster", raylets.settings.address),
        engine="vllm",
        model=MODEL,
        settings=(*OVER_TWO, f"engine_core={core}"),
    )
    return Command(arguments=arguments, folder=folder, environment=environment)


def answers(folder: Path) -> dict[str, str]:
    """The texts by row."""
    rows = [json.loads(line) for line in (folder / "out/output.jsonl").read_text().splitlines()]
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
