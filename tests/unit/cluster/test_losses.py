"""Nodes that took no connections, as the driver remembers them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from dray.cluster.losses import Unreachable
from tests.support.clocks import replace_here

pytestmark = pytest.mark.unit


def test_a_node_that_a_broken_network_hid_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each later death on it would count as the one loss of that node, and never exclude it."""
    clock = SimpleNamespace(now=1000.0)
    replace_here(monkeypatch, time, "monotonic", lambda: clock.now)
    unreachable = Unreachable()
    unreachable.add("n")
    clock.now += 50.0
    unreachable.add("n")  # another of its replicas: what is known of it is as old as it was
    assert "n" in unreachable and "other" not in unreachable
    clock.now += 11.0
    assert "n" not in unreachable
