"""Row 13: connections that are slow."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.weights.bad_inputs.support import (
    Limiter,
    Wanted,
    Webs,
    comes_from,
    is_refused,
    known,
    sound,
)
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration


def _trickling(wanted: Wanted) -> None:
    """A byte at a time: never silent, never done."""
    wanted.say(206, Content_Length=len(wanted.data))
    for byte in wanted.data:
        wanted.connection.sendall(bytes([byte]))
        time.sleep(0.2)


@pytest.mark.heavy
def test_row_13_a_connection_that_trickles_is_given_up(web: Webs, limited: Limiter) -> None:
    limited(hedge_samples=1000)  # nobody asks twice
    slow = web(sound, sound, _trickling)
    began = time.monotonic()
    model = comes_from(slow)
    assert time.monotonic() - began < 12
    assert model.outcome is not None
    assert model.outcome.faults == {"slow": 1}


def test_row_13_slow_connections_are_overtaken(web: Webs) -> None:
    slow = web(sound, _trickling, sound, sound, _trickling)
    began = time.monotonic()
    model = comes_from(slow)
    assert time.monotonic() - began < 4.5  # sooner than they are given up
    assert model.outcome is not None
    assert model.outcome.hedges == 2


def test_row_13_connections_that_stall_half_way_are_overtaken(web: Webs) -> None:
    def stalled(wanted: Wanted) -> None:
        wanted.say(206, wanted.data[: len(wanted.data) // 2], Content_Length=len(wanted.data))
        time.sleep(30)

    stalling = web(sound, stalled, sound, sound, stalled)
    began = time.monotonic()
    model = comes_from(stalling)
    assert time.monotonic() - began < 8
    assert model.outcome is not None
    assert model.outcome.hedges == 2


def test_row_13_a_store_that_stalls_for_good_is_told(
    server: EmulatorProcess, origin: Path, cache: Path, limited: Limiter
) -> None:
    limited(stall_seconds=3.0)
    manifest = known(server)
    server.behave(stall_share=1.0)
    began = time.monotonic()
    is_refused(
        manifest, server.options, cache, r"bytes 0 to [\d,]+: nothing arrived for a long time \(no answer\)"
    )
    assert time.monotonic() - began < 8
