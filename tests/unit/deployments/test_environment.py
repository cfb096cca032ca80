"""``deployments/environment.sh`` says what is missing before it installs anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
PYTHON = """#!/bin/sh
# A Python that notes its arguments, and has the pip that PIP names.
echo "$*" >> "$CALLS"
case "$*" in
    *"import pip"*) [ -n "$PIP" ] && echo "$PIP" ;;
    *"-m uv --version"*) exit 1 ;;
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""
UNAME = """#!/bin/sh
echo "$SYSTEM"
"""


@dataclass(frozen=True)
class Ended:
    """How the script ended, what it said, and what it asked of Python."""

    code: int
    said: str
    calls: str

    @property
    def installed(self) -> bool:
        return "-m uv pip install" in self.calls


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script and its pins, and programs that stand for the system's."""
    (tmp_path / "deployments").mkdir()
    shutil.copy(ROOT / "deployments/environment.sh", tmp_path / "deployments")
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    for name, text in {"python": PYTHON, "uname": UNAME}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def install(checkout: Path, *, pip: str, system: str = "Linux") -> Ended:
    """``pip`` is the version that Python has, empty for none."""
    programs, calls = checkout / "bin", checkout / "calls"
    settings = {"PYTHON": str(programs / "python"), "CALLS": str(calls), "PIP": pip, "SYSTEM": system}
    done = subprocess.run(
        [checkout / "deployments/environment.sh", "install"],
        env={**os.environ, **settings, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stderr, calls.read_text() if calls.exists() else "")


@pytest.mark.parametrize("pip", ["22.3", "23.0.1", "26.1"])
def test_a_pip_that_serves_other_environments_will_do(checkout: Path, pip: str) -> None:
    ended = install(checkout, pip=pip)
    assert ended.code == 0, ended.said
    assert ended.installed


@pytest.mark.parametrize("pip", ["22.0.2", "22.2.2", "9.0.3"])
def test_an_older_pip_is_named(checkout: Path, pip: str) -> None:
    """Ubuntu 22.04 has 22.0.2."""
    ended = install(checkout, pip=pip)
    assert ended.code == 2
    assert not ended.installed
    assert f"pip {pip}" in ended.said
    assert f"{checkout}/bin/python -m pip install --upgrade pip" in ended.said


def test_where_there_is_no_pip_it_says_how_to_get_one(checkout: Path) -> None:
    ended = install(checkout, pip="")
    assert ended.code == 2
    assert not ended.installed
    assert "apt install python3-pip" in ended.said
    assert "uv" in ended.said


def test_other_systems_are_refused_at_once(checkout: Path) -> None:
    ended = install(checkout, pip="26.1", system="Darwin")
    assert ended.code == 2
    assert "Linux" in ended.said
    assert "Darwin" in ended.said
    assert not (checkout / ".venv").exists()
