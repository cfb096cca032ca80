"""Connections that go to no proxy, whatever the environment names."""

from __future__ import annotations

import pytest

from dray.proxies import loopback_exceptions

pytestmark = pytest.mark.unit

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def _none(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme.upper()}_PROXY", raising=False)


def test_without_a_proxy_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback_exceptions() == {}
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert loopback_exceptions() == {}


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ({}, ("127.0.0.1", "127.0.0.1")),
        ({"NO_PROXY": "a.example,10.0.0.0/8"}, ("a.example,10.0.0.0/8,127.0.0.1",) * 2),
        ({"no_proxy": "a", "NO_PROXY": "b"}, ("a,127.0.0.1", "b,127.0.0.1")),
        ({"no_proxy": "localhost, 127.0.0.1"}, ("localhost, 127.0.0.1",) * 2),
        ({"NO_PROXY": "*"}, ("*", "*")),
    ],
)
def test_loopback_is_added_to_what_is_there(
    listed: dict[str, str], told: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    for name, value in listed.items():
        monkeypatch.setenv(name, value)
    found = loopback_exceptions()
    assert (found["no_proxy"], found["NO_PROXY"]) == told
