"""A run of the tests says at its start which programs of the system it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import packages

pytestmark = pytest.mark.unit


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the programs are looked for; nothing is there."""
    monkeypatch.setattr(packages, "POSTGRESQL", tmp_path / "postgresql", raising=False)
    monkeypatch.setattr(packages, "CHROMIUM", tmp_path / "chromium", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(program: Path) -> Path:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch(0o755)
    return program.parent


def header(config: pytest.Config) -> str:
    return str(config.hook.pytest_report_header(config=config, start_path=Path()))


def test_what_is_missing_stands_in_the_header(system: Path, pytestconfig: pytest.Config) -> None:
    assert "apt install postgresql" in header(pytestconfig)
    assert "apt install chromium" in header(pytestconfig)
    install(system / "postgresql/15/bin/postgres")
    install(system / "chromium")
    assert "apt install" not in header(pytestconfig)


def test_the_newest_postgresql_of_debian_goes_before_one_on_the_path(system: Path) -> None:
    assert packages.postgres_binaries() is None
    on_path = install(system / "postgres")
    assert packages.postgres_binaries() == on_path
    install(system / "postgresql/9.6/bin/postgres")
    newest = install(system / "postgresql/15/bin/postgres")
    assert packages.postgres_binaries() == newest
