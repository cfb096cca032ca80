"""Store URLs: what is taken, what is refused, and that passwords stay hidden."""

from __future__ import annotations

import re
import shlex
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.job.options.resolving import NoBlocks
from dray.job_plan.measured import efficiencies_in
from dray.store import masked_url
from dray.store.database import urls as module
from dray.store.database.urls import parse_url, plain_name
from dray.store.named import file_of
from dray.store.option import store_option

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("url", ["store.db", "./store.db", "sqlite:///store.db", "a/b.sqlite", "b.sqlite3"])
def test_files_become_absolute(url: str) -> None:
    parsed = parse_url(url)
    assert parsed.drivername == "sqlite"
    assert parsed.database == str(Path(url.removeprefix("sqlite:///")).absolute())


def test_the_folder_of_a_command_is_not_in_the_name_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yy").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dray.db").touch()
    monkeypatch.chdir(tmp_path / "yy")
    named = str(tmp_path / "out" / "dray.db")
    assert parse_url("../out/dray.db").database == parse_url("sqlite:///../out/dray.db").database == named
    assert str(file_of("../out")) == str(file_of("../out/dray.db")) == named


def test_a_folder_stands_for_the_store_in_it(tmp_path: Path) -> None:
    """As messages name it that advise a command: `--store OUTPUT`."""
    named = str(tmp_path / "dray.db")
    assert parse_url(str(tmp_path)).database == parse_url(f"{tmp_path}/").database == named
    (tmp_path / "dray.db").touch()
    option = store_option(f"sqlite:///{named}")
    assert parse_url(shlex.split(option)[1]).database == named


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
    with pytest.raises(ConfigError, match="its extra postgres"):
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


@given(password=st.text("aZ9@:/?#&= ", min_size=1, max_size=12))
def test_a_password_with_any_signs_is_whole(password: str) -> None:
    """Not only up to its first "@": the rest would be shown as the server's name."""
    url = f"postgresql://me:{password}@host/db"
    assert parse_url(url).password == password
    for shown in (masked_url(url), masked_url(parse_url(url).render_as_string(hide_password=False))):
        assert shown.partition("://")[2] == "me:***@host/db"
    assert plain_name(parse_url(url)) == "db (PostgreSQL)"


@given(password=st.text(st.characters(categories=["L", "N", "P"]), min_size=4, max_size=20))
def test_a_login_is_hidden_where_the_scheme_was_forgotten(password: str) -> None:
    secret = f"S3{password}"
    for named in (
        f"me:{secret}@db.example/dray",
        f"//me:{secret}@db.example/dray",
        f"postgresql:me:{secret}@db.example/dray",
        f"host=db user=me password={secret} dbname=dray",
        f"db.example/dray?sslpassword={secret}",
    ):
        for act in (parse_url, file_of, lambda given: efficiencies_in(given, NoBlocks(), print)):
            with pytest.raises(ConfigError) as caught:
                act(named)
            assert secret not in "".join(traceback.format_exception(caught.value))


def test_an_option_that_ends_in_an_at_sign_hides_no_less() -> None:
    assert "secret" not in masked_url("postgresql://host:5432/db?user=a@b&password=secret")


@pytest.mark.parametrize("path", ["/data/me@corp/out", "C:/runs/out", "./rows?/out"])
def test_a_path_is_named_as_it_is(path: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"no store at {path}: ")):
        file_of(path)
