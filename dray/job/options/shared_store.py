"""SQLite takes writers from one machine only: this one writes to a job's store, and each stable node does."""

from __future__ import annotations

import socket
from collections.abc import Collection

from dray.cluster.base import ClusterSettings
from dray.cluster.member import runs_node
from dray.errors import ConfigError
from dray.store.database.urls import parse_url

ADVICE = "use PostgreSQL: --store env:NAME, a variable that holds postgresql://..."


def is_sqlite(store_url: str) -> bool:
    """Whether the store is a SQLite file."""
    return parse_url(store_url).get_backend_name() == "sqlite"


def refuse_rented_sqlite(store_url: str, where: ClusterSettings) -> None:
    """Refuse SQLite for a cluster of rented machines, before any is asked for: its head writes, too.

    One that `dray cluster up` made is let through on a machine that runs a node of Ray, which may be its
    head.

    Raises:
        ConfigError: the store is SQLite.
    """
    if where.provider is None or not is_sqlite(store_url) or (where.standing and runs_node()):
        return
    raise ConfigError(
        "SQLite takes writers from one machine only; this driver writes to the store, and so does the head "
        f"of the rented cluster, which is another machine; {ADVICE}"
    )


def refuse_shared_sqlite(store_url: str, stable_hosts: Collection[str]) -> None:
    """Refuse SQLite where the stable nodes are not all on this machine.

    Raises:
        ConfigError: the store is SQLite, and there are several machines.
    """
    writers = {*stable_hosts, socket.gethostname()}
    if len(writers) > 1 and is_sqlite(store_url):
        raise ConfigError(
            "SQLite takes writers from one machine only; the driver and the stable nodes are "
            f"{len(writers)} machines ({', '.join(sorted(writers)[:5])}); {ADVICE}"
        )
