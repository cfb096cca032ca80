"""Ray on this machine, started before the job asks for it: its seconds pass beside those of imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def prestarted_cluster(cluster: str) -> Iterator[None]:
    """Start a cluster of our own, where the job has one; its processes inherit the environment of now."""
    if cluster != "local":
        yield
        return
    from dray.cluster import prestart_cluster, release_prestarted

    prestart_cluster()
    try:
        yield
    finally:
        release_prestarted()


def join_prestarted(modules: Sequence[str]) -> None:
    """Join that cluster, where there is one, and have one of its worker processes import ``modules``."""
    from dray import cluster

    cluster.join_prestarted(modules)
