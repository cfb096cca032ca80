"""The limits of a fetch: how many requests at once, how long to wait, when to give up."""

from __future__ import annotations

from dataclasses import dataclass

from dray.storage.retries import LONGEST_PAUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Seconds and counts by which the schedule decides."""

    first_window: int = 8
    largest_window: int = 64
    round_seconds: float = 0.2  # at least, before a window is judged: shorter ones are noise
    tries: int = 10  # of one chunk at the origin; a busy one is asked as long as anything comes
    corrupt_tries: int = 3
    longest_wait: float = 8.0
    stall_seconds: float = 120.0  # nothing arrived at all: given up
    silent_seconds: float = 30.0  # a connection without bytes is given up before
    longest_pause: float = LONGEST_PAUSE
    pauses_seconds: float = 900.0  # nothing arrived, for the origin says again and again to ask later
    hedge_after: float = 1.0
    hedge_factor: float = 4.0
    hedge_samples: int = 6
    peer_window: int = 8
    peers_window: int = 64  # of all peers together: each request has a chunk's bytes of private memory
    peer_strikes: int = 3
    peer_rest: float = 30.0
    patience: float = 3.0  # for a chunk whose home node brings nothing; each stand-in waits once more
    lookahead: int = 512
