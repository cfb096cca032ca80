"""A cluster that a job is not to need: nothing is started, and whatever joins it fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dray.cluster import ClusterInfo


class NoCluster:
    """In the place of a cluster, for jobs that end before they would join one."""

    rented = None

    def start(self) -> None:
        """Nothing is started."""

    def wait(self, look: Callable[[], None]) -> ClusterInfo:
        """The job asks for the cluster: it was not to."""
        pytest.fail("the job joins its cluster")

    def check(self) -> None:
        """All is well."""

    def leave(self) -> None:
        """Nothing is left."""


@contextmanager
def no_cluster(*_: object) -> Iterator[NoCluster]:
    """In the place of the flow's ``cluster_of``."""
    yield NoCluster()
