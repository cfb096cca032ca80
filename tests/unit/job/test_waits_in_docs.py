"""The table of waits in docs/interruptions.md gives the code's own limits, each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from dray.cli import server, status
from dray.cluster import agents, connect, head, member
from dray.cluster.base import START_SECONDS
from dray.driver.intervals import Intervals
from dray.driver.replicas import losses, pool
from dray.driver.shard_tasks import shards
from dray.engine import sessions
from dray.failures.rules import STORE_PATIENCE
from dray.job import cancelling, heeding
from dray.job.beginning.opening import DRIVER_TTL
from dray.requests import pulse
from dray.requests.reading import queries
from dray.shard import verdicts
from dray.store.calls.shards import SHARD_TTL
from dray.store.database import connection, sqlite_file, turn
from dray.store.store import PATIENCE
from dray.weights.fetch import fetcher
from dray.weights.node import peers, ready
from flows.parameters import EngineOptions
from tasks import stopping

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs" / "interruptions.md"

LIMITS: Mapping[str, float] = {
    "the driver, for the next row of the input": pulse.READ_SECONDS,
    "the driver, for an input that hangs, once cancelled": heeding.STOP_SECONDS,
    "the driver, for a query's database to connect": queries.CONNECT_SECONDS,
    "a query's connection, for a network that is gone": queries._LIBPQ["tcp_user_timeout"] / 1000,
    "a process that opens a store that does not answer": PATIENCE,
    "a read or write, for another's lock (PostgreSQL)": connection.LOCK_SECONDS,
    "a write, for its turn at the file (SQLite)": turn.PATIENCE_SECONDS,
    "a write, for another's lock (SQLite)": sqlite_file.BUSY_SECONDS,
    "a statement of a write (PostgreSQL)": connection.STATEMENT_SECONDS,
    "a statement, for a server that says nothing": connection.SILENCE_SECONDS,
    "what changes whole tables, for the same": connection.LONG_SILENCE_SECONDS,
    "a running job, for its store": STORE_PATIENCE,
    "a shard, for a store that answers to take its rows": STORE_PATIENCE,
    "a shard, for its requests to be readable": STORE_PATIENCE,
    "the driver, for Ray to start on this machine": head._START_SECONDS,
    "the driver, for this machine's node, which starts": member.RAYS_SECONDS,
    "the driver, for a cluster to be joined": connect.JOIN_SECONDS,
    "the driver, for a join that hangs, when it leaves": connect.LEAVE_SECONDS,
    "the driver, for the first replica": START_SECONDS,
    "a replica beyond the fewest, for a place": Intervals().missing,
    "a replica that has its place, for its engine": START_SECONDS,
    "the driver, for a replica, while none is ready": START_SECONDS,
    "the driver, for a sign of a replica": pool.SILENT_SECONDS,
    "the driver, for shard tasks to say what they saw": losses.EVIDENCE_SECONDS,
    "the driver, for Ray to say what a replica died of": losses.SETTLE_SECONDS,
    "a shard task, for the driver to judge its replica": verdicts.VERDICT_SECONDS,
    "a replica, for its engine to get further": EngineOptions().stall_seconds,
    "a replica that leaves, for what it still runs": pool.DRAIN_SECONDS,
    "a replica, for the model's next bytes": ready.STALL_SECONDS,
    "a fetch, for the next bytes of a connection": fetcher.STALL_SECONDS,
    "a node's agent, for a sign of a driver": agents.HOLD_SECONDS,
    "a node's agent without a model, for a driver": agents.IDLE_SECONDS,
    "a stranger at the peers' port, to show its token": peers.STRANGER_SECONDS,
    "a second driver, for a job whose driver is gone": DRIVER_TTL,
    "a shard task, for a shard whose holder is gone": SHARD_TTL,
    "a replica, for a sign of a shard task that feeds it": sessions.SILENCE_SECONDS,
    "the driver, for a shard task without a lease to end": shards.HUNG_SECONDS,
    "the driver, for a shard task to take a free place": shards.UNCLAIMED_SECONDS,
    "a job, for a store with a connection left": STORE_PATIENCE,
    "a job that stops, for shard tasks without a lease": shards.ENDING_SECONDS,
    "a run that was cancelled in Prefect, for its shards": stopping.STOP_SECONDS,
    "the same, for a store that is away": stopping.STOP_SECONDS,
    "another cancel of a run, for a store that is away": cancelling.CANCEL_SECONDS,
    "a run, for Prefect's own server to start": server.START_SECONDS,
    "`dray status --watch`, for a store that went away": status.AWAY_SECONDS,
    "`dray status --watch`, for a driver without a lease": status.UNDRIVEN_SECONDS,
}
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _table() -> dict[str, float]:
    found = re.search(r"<!-- begin waits -->\n(.*?)<!-- end waits -->", DOCS.read_text(), re.DOTALL)
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]
    return {what: float(limit.split()[0]) * _UNITS[limit.split()[1]] for what, limit, _ in rows}


def test_every_limit_is_that_of_the_code() -> None:
    assert _table() == LIMITS
