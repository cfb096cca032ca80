"""Store URLs: what is taken, what is refused, and that passwords stay hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.store import masked_url
from dray.store.database import urls as module
from dray.store.database.urls import parse_url

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("url", ["store.db", "./store.db", "sqlite:///store.db", "a/b.sqlite", "b.sqlite3"])
def test_files_become_absolute(url: str) -> None:
    parsed = parse_url(url)
    assert parsed.drivername == "sqlite"
    assert parsed.database == str(Path(url.removeprefix("sqlite:///")).absolute())


def test_an_absolute_path_stays() -> None:
    assert parse_url("sqlite:////data/store").database == "/data/store"


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_both_forms_of_postgresql_use_psycopg(scheme: str) -> None:
    parsed = parse_url(f"{scheme}://user:pw@host:5433/db?sslmode=require")
    assert (parsed.drivername, parsed.host, parsed.port) == ("postgresql+psycopg", "host", 5433)
    assert parsed.password == "pw"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/db", "no store of kind 'mysql'"),
        ("postgresql+psycopg2://host/db", "no store of kind"),
        ("results.txt", "does not end in"),
        ("", "does not end in"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:x?mode=memory", "file: URIs"),
        ("://", "cannot be read"),
    ],
)
def test_what_is_refused_says_what_to_write(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match="write sqlite:///") as caught:
        parse_url(url)
    assert says in str(caught.value)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"dray\[postgres\]"):
        parse_url("postgresql://host/db")


@given(password=st.text(st.characters(categories=["L", "N"]), min_size=4, max_size=20))
def test_passwords_are_masked(password: str) -> None:
    secret = f"S3{password}"
    for url in (
        f"postgresql://me:{secret}@host/db",
        f"mysql://me:{secret}@host/db",
        f"postgresql://host/db?user=me&password={secret}",
        f"postgresql://me:{secret}@host:notaport/db",
    ):
        assert secret not in masked_url(url)
        try:
            parse_url(url)
        except ConfigError as error:
            assert secret not in str(error)
    assert masked_url("postgresql://me@host/db") == "postgresql://me@host/db"
