"""A Prefect server and a worker as deployments/README.md sets them up, and the runs of its deployments."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from tests.support.prefect_server import ROOT, PrefectServer, prefect_server

RUN_SECONDS = 240.0


@contextmanager
def deployed() -> Iterator[PrefectServer]:
    """A fresh server with a worker, set up as deployments/README.md says."""
    with prefect_server() as server:
        for command in documented():
            if command[:2] == ["worker", "start"]:
                server.worker = server.start("worker", *command)
            elif command[:2] != ["deployment", "run"]:
                server.cli(*command)
        assert server.worker is not None
        yield server


def documented() -> list[list[str]]:
    """The commands of Prefect's in deployments/README.md that set a fresh server up, in their order."""
    text = (ROOT / "deployments" / "README.md").read_text()
    block = text.split("```bash\n", 1)[1].split("```", 1)[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert commands[0][:1] == ["export"]  # the address of a server: here it is in the environment
    return [command[1:] for command in commands if command[0] == "prefect"]


def start(server: PrefectServer, parameters: dict[str, Any], deployment_name: str = "tickets") -> str:
    """A custom run, as the UI's form asks for it; gives its id."""
    deployment = server.get(f"/deployments/name/batch-inference/{deployment_name}")
    body = {
        "parameters": deployment["parameters"] | parameters,
        "state": {"type": "SCHEDULED"},
        "enforce_parameter_schema": True,
    }
    run_id: str = server.post(f"/deployments/{deployment['id']}/create_flow_run", body)["id"]
    return run_id


def processes(server: PrefectServer) -> list[psutil.Process]:
    """All that the worker's runs have started and that still lives: the flow, Ray, its workers."""
    assert server.worker is not None
    found: list[psutil.Process] = psutil.Process(server.worker.pid).children(recursive=True)
    return found


def slow(seconds_per_token: float = 0.2) -> dict[str, Any]:
    """Engine options: 16 rows of 8 tokens at a time."""
    return {
        "name": "simulated",
        "arguments": {"seconds_per_token": seconds_per_token, "max_num_seqs": 16},
        "shard_rows": 40,
    }


def of_run(server: PrefectServer, kind: str, run_id: str) -> list[dict[str, Any]]:
    filters = {
        "logs": ("/logs/filter", {"logs": {"flow_run_id": {"any_": [run_id]}}}),
        "artifacts": ("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run_id]}}}),
        "task runs": ("/task_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}}),
    }
    return server.pages(*filters[kind])


def states(server: PrefectServer, run_id: str) -> list[str]:
    return [state["name"] for state in server.get(f"/flow_run_states/?flow_run_id={run_id}")]


def open_tasks(server: PrefectServer, run_id: str) -> list[str]:
    """The tasks of the run that its page shows as not ended."""
    ended = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
    return [task["name"] for task in of_run(server, "task runs", run_id) if task["state_type"] not in ended]
