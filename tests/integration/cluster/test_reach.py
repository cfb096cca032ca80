"""A store that the driver opens by variables of its own: the cluster's stable node does not have them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from dray.store import JobState, open_store
from tests.support.command import Command, run_arguments, write_requests
from tests.support.postgres import PostgresServer
from tests.support.raylets import Raylets

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]


@pytest.fixture
def raylets() -> Iterator[Raylets]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:  # short: Ray's sockets lie in it
        found = Raylets(Path(folder) / "r", 1)
        yield found
        found.stop()


def test_a_store_that_no_stable_node_can_open_blocks_the_job_at_its_start(
    raylets: Raylets, tmp_path: Path
) -> None:
    """Its shard tasks tried for half an hour, and said nothing."""
    with PostgresServer() as server:
        database = server.create_database()
        arguments = run_arguments(
            write_requests(tmp_path / "in.jsonl", 20),
            tmp_path / "out",
            *("--cluster", str(raylets.settings.address)),
            store=f"postgresql:///{database}",
        )
        given = make_url(server.url(database))
        known = {"HOST": given.host, "PORT": given.port, "USER": given.username, "PASSWORD": given.password}
        environment = raylets.environment | {f"PG{name}": str(value) for name, value in known.items()}
        ended = Command(arguments=arguments, folder=tmp_path, environment=environment).wait(200)
        assert ended.code == 1, ended.stderr
        told = ended.json["error"]
        assert told["type"] == "JobBlockedError"
        assert "this driver can open the store, and 1 stable node cannot" in told["message"]
        assert str(given.password) not in ended.stderr + told["message"]
        with open_store(server.url(database), create=False) as opened:
            assert opened.get_job("job").state is JobState.PAUSED
