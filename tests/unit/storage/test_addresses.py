"""Logins in the URLs of databases: found however they stand there, and never shown."""

from __future__ import annotations

import pytest

from dray.errors import ConfigError
from dray.storage.absolute_paths import absolute
from dray.storage.addresses import (
    holds_password,
    identifying_url,
    masked_url,
    names_login,
    refuse_secret,
    shows_secret,
    without_variable,
)

pytestmark = pytest.mark.unit

WORD = "hidden-word"
HELD = [
    f"postgresql://me:{WORD}@host/dray",
    f"postgresql://me:{WORD}/x@host/dray",  # a slash in it, as SQLAlchemy takes it
    f"postgresql://host/dray?user=me&password={WORD}",
    f"mysql+pymysql://host/dray?ssl_key_passwd={WORD}",
    f"no database://me:{WORD}@host",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3DODBC%3BSERVER%3Ddb%3BUID%3Dsa%3BPWD%3D{WORD}",
    f"bigquery://project?credentials_base64={WORD}",
    f"snowflake://host/db?token={WORD}&warehouse=w",
    f"trino://host/catalog?access_token={WORD}",
    f"postgresql://host/db?options=-c%20my.secret%3D{WORD}",
    f"no database://host?key={WORD}",
]


@pytest.mark.parametrize("url", HELD)
def test_a_password_is_found_wherever_it_stands(url: str) -> None:
    assert names_login(url)
    assert holds_password(url)
    assert WORD not in masked_url(url)


def test_a_user_is_a_login_without_a_password() -> None:
    url = "postgresql://me@host:5432/dray"
    assert names_login(url)
    assert not holds_password(url)
    assert masked_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////data/dray.db",
        "postgresql://host/dray",
        "/data/a@b.db",
        "postgresql+psycopg://host/dray?connect_timeout=5&options=-csearch_path%3Da&sslrootcert=%2Frun%2Fsecrets%2Fca",
        "mssql+pyodbc://host/db?TrustServerCertificate=yes&driver=ODBC+Driver+18",
        "s3://bucket/what?is=it.jsonl",
    ],
)
def test_what_holds_neither(url: str) -> None:
    assert not names_login(url)
    if not url.startswith("s3:"):
        assert not holds_password(url)
    if url.startswith(("sqlite:", "postgresql", "mssql")):
        assert masked_url(url) == url


@pytest.mark.parametrize("url", HELD)
def test_a_word_of_a_command_shows_a_login(url: str) -> None:
    for word in (url, f"--store={url}", f"read {url}, please"):
        assert shows_secret(word)
    if not url.startswith("no "):
        assert shows_secret(url.replace(WORD, "two words"))


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (f"s3://me:{WORD}@bucket/in.jsonl", True),
        (f"--input=https://host/in.jsonl?sig={WORD}", True),
        (f"https://host?sig={WORD}", True),
        (f'{{"input": "https://me:{WORD}@host/in.jsonl"}}', True),
        ("hf://org/name@revision", False),
        ("hf://datasets/org/set@refs%2Fpr%2F1/a@b.jsonl", False),
        ("s3://bucket/a@b/what?is=it.jsonl", False),
        ("https://host/in.jsonl", False),
        ("Say what https://host/page?number=1 tells, and mail it to me@host.", False),
        ("https://host/page?number=1 is what you know.", False),
        ("env:DRAY_STORE_URL", False),
        ("--store=postgresql://host/dray", False),
        ("--temperature=0.5", False),
        ("me@host", False),
    ],
)
def test_words_of_a_command_that_are_no_database(word: str, shown: bool) -> None:
    assert shows_secret(word) == shown


def test_databases_are_told_apart_by_options_that_are_not_shown() -> None:
    first, second = (f"mssql+pyodbc:///?odbc_connect=SERVER%3D{name}" for name in "ab")
    assert masked_url(first) == masked_url(second)
    assert identifying_url(first) != identifying_url(second)
    assert WORD not in identifying_url(f"postgresql://me:{WORD}@host/dray?sslpassword={WORD}")


def test_a_variable_stands_for_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URL_OF_STORE", "sqlite:////data/dray.db")
    assert without_variable("env:URL_OF_STORE") == "sqlite:////data/dray.db"
    assert without_variable("/data/dray.db") == "/data/dray.db"
    monkeypatch.setenv("URL_OF_STORE", "")
    with pytest.raises(ConfigError, match=r"^environment variable URL_OF_STORE is not set$"):
        without_variable("env:URL_OF_STORE")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "https", "hf", "S3"])
def test_a_uri_with_one_slash_is_no_folder(scheme: str) -> None:
    for read in (absolute, refuse_secret):
        with pytest.raises(ConfigError, match=f"did you mean {scheme}://bucket/rows"):
            read(f"{scheme}:/bucket/rows")
    assert absolute("./s3:/rows").endswith("/s3:/rows")
