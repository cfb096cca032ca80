"""Jobs on SQLite and PostgreSQL."""

from tests.integration.store.conftest import postgres, postgres_url, template

__all__ = ["postgres", "postgres_url", "template"]
