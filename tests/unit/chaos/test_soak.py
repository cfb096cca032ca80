"""The soak begins a run again when its cluster's process ended, but for an invariant that is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import soak
from tests.chaos.soak import Soak

pytestmark = pytest.mark.unit


@pytest.fixture
def soaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Soak:
    """One whose cluster has ended."""
    found = Soak(tmp_path, rows=10, seed=1)
    cluster = SimpleNamespace(up=False)
    parts: dict[str, Any] = {
        "_cloud": SimpleNamespace(raylets=cluster, renew=lambda: None, fill=lambda: None),
        "_stores": SimpleNamespace(made=_made),
        "_wanted": object(),
        "_start_drivers": lambda: None,
        "_end_drivers": lambda: None,
    }
    for name, part in parts.items():
        monkeypatch.setattr(found, name, part, raising=False)
    return found


@contextmanager
def _made(folder: Path, *, postgres: bool) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    yield


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (AssertionError("I1: acknowledged rows vanished: [3]"), False),
        (AssertionError("I8: output.jsonl differs"), False),
        (AssertionError("I6: no budget has a charge for a node"), True),
        (AssertionError("the driver ended with 1"), True),
        (RuntimeError("the cluster's process ended"), True),
    ],
)
def test_a_broken_invariant_counts_whatever_became_of_the_cluster(
    error: Exception, again: bool, soaking: Soak, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [error]

    def check(run: Any, wanted: Any) -> Any:
        if errors:
            raise errors.pop()
        return SimpleNamespace()

    def run(plan: Any, folder: Path, store: Any) -> Any:
        return SimpleNamespace(plan=plan, folder=folder, go=lambda: None, close=lambda: None)

    monkeypatch.setattr(soaking, "_made", run)
    monkeypatch.setattr(soak, "check_run", check)
    monkeypatch.setattr(type(soaking.totals), "take", lambda *_: None)
    monkeypatch.setattr(type(soaking.totals), "count", lambda *_: None)
    assert soaking.run(0) is again
    assert (soaking.totals.again, len(soaking.totals.failures)) == ((1, 0) if again else (0, 1))
