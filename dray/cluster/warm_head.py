"""The head of this process's next local cluster: it may import Ray before any job asks for it."""

from __future__ import annotations

import os

from dray.cluster.head import Head
from dray.cluster.own_environment import prepare_local

_warm: Head | None = None  # that waits to be asked


def warm_up() -> None:
    """Have it import Ray; it starts nothing until it is asked.

    The environment of this process stays as it is: its next cluster may be another one.
    """
    global _warm
    before = dict(os.environ)
    try:
        prepare_local()
        _warm = Head()
    finally:
        os.environ.clear()
        os.environ.update(before)


def cool_down() -> None:
    """End a head that was warmed up and never asked."""
    head = _taken()
    if head is not None:
        head.stop()


def next_head() -> Head:
    """The head that was warmed up, or else a new one."""
    return _taken() or Head()


def _taken() -> Head | None:
    global _warm
    head, _warm = _warm, None
    return head
