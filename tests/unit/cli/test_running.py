"""What of a command reaches Prefect, which keeps the parameters of every run."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dray.cli.running import _hide_secrets

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:hidden-word@host/dray", "postgresql://host/dray?user=me&password=hidden-word"],
)
@pytest.mark.parametrize("name", ["store", "input"])
def test_a_url_with_a_password_goes_by_the_environment(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"DRAY_{name.upper()}_URL"
    monkeypatch.setenv(variable, "")
    parameters: dict[str, Any] = {"store": None, "input": ["in.jsonl"], name: url}
    _hide_secrets(parameters)
    assert parameters[name] == f"env:{variable}"
    assert os.environ[variable] == url
    assert "hidden-word" not in str(parameters)


def test_anything_else_stays() -> None:
    parameters = {"store": "sqlite:////data/dray.db", "input": ["s3://bucket/in.jsonl"]}
    _hide_secrets(parameters)
    assert parameters == {"store": "sqlite:////data/dray.db", "input": ["s3://bucket/in.jsonl"]}
