"""Jobs on SQLite and PostgreSQL."""

import pytest

from dray.shard import placing, verdicts
from tests.integration.store.conftest import postgres, postgres_url, template

__all__ = ["eager", "postgres", "postgres_url", "template"]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that wait for a place, or a verdict, ask for it often."""
    for module in (placing, verdicts):
        monkeypatch.setattr(module, "_ASK_EVERY", 0.01)
