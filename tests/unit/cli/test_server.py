"""Whether Prefect is told where its API is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.cli.server import configured

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def test_nothing_is_configured() -> None:
    assert not configured()


def test_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert configured()
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert not configured()


def test_by_a_profile(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('active = "local"\n[profiles.local]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n')
    assert configured()


@pytest.mark.parametrize(
    "text",
    [
        'active = "ephemeral"\n[profiles.ephemeral]\nPREFECT_SERVER_ALLOW_EPHEMERAL_MODE = "true"\n',
        'active = "a"\n[profiles.a]\n[profiles.b]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n',
        'active = "a"\n[profiles.a]\n# PREFECT_API_URL = "http://127.0.0.1:4200/api"\n',
    ],
)
def test_a_profile_that_does_not_say_it_or_is_not_active(tmp_path: Path, text: str) -> None:
    (tmp_path / "profiles.toml").write_text(text)
    assert not configured()


def test_the_profile_that_the_environment_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'active = "a"\n[profiles.a]\n[profiles.b]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n'
    (tmp_path / "profiles.toml").write_text(text)
    monkeypatch.setenv("PREFECT_PROFILE", "b")
    assert configured()
