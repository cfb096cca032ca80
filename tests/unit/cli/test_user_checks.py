"""``dray doctor`` on the files of its user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from dray.cli import user_checks
from dray.errors import ConfigError
from dray.planner.catalogue.saved import folder
from dray.storage.hub_http import _token_file
from dray.storage.objects import ObjectStoreOptions
from dray.weights.node import places
from dray.weights.node.places import CacheRoot, cache_roots
from dray.weights.source.content import _remember, _remembered

pytestmark = pytest.mark.unit


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is a number, or a service without HOME."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "HF_HOME", "HF_TOKEN_PATH", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("DRAY_HARDWARE", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_is_told_so_and_needs_none_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="HOME is not set"):
        user_checks.home()
    with pytest.raises(ConfigError, match="HOME is not set"):
        folder()
    ObjectStoreOptions.from_env({})
    assert not _token_file().exists()
    _remember(Path(__file__), [1], "digest")
    assert _remembered(Path(__file__), [1]) is None
    monkeypatch.setattr(places, "_SHARED", tmp_path)
    assert cache_roots({}) == [CacheRoot(root=tmp_path / f"dray-{os.getuid()}", memory=True)]
    monkeypatch.setattr(places, "_SHARED", tmp_path / "missing")
    with pytest.raises(ConfigError, match="HOME is not set"):
        cache_roots({})


def test_a_home_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_checks.home() == str(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert user_checks.home().startswith(f"{tmp_path} cannot be written to: ")


def test_systemd_may_delete_models_at_a_logout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_checks, "_SYSTEMD", tmp_path)
    monkeypatch.setattr(user_checks, "_LINGERING", tmp_path)
    monkeypatch.setattr(user_checks, "_ASK", ["echo", "b true"])
    assert os.getuid() >= 1000 or user_checks.logout() == "leaves files in /dev/shm"  # of a service's user
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ann"))
    assert "`loginctl enable-linger ann`, or RemoveIPC=no in logind.conf" in user_checks.logout()
    monkeypatch.setattr(user_checks, "_ASK", ["/no/such/program"])
    assert "enable-linger" in user_checks.logout()
    monkeypatch.setattr(user_checks, "_ASK", ["echo", "b false"])
    assert user_checks.logout() == "leaves files in /dev/shm"
    monkeypatch.setattr(user_checks, "_ASK", ["echo", "b true"])
    (tmp_path / "ann").touch()
    assert user_checks.logout() == "leaves files in /dev/shm"
    monkeypatch.setattr(user_checks, "_SYSTEMD", tmp_path / "missing")
    (tmp_path / "ann").unlink()
    assert user_checks.logout() == "leaves files in /dev/shm"
