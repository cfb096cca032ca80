"""Where Prefect's own server keeps its database: a home that will not do does not end a run."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from dray.cli import prefect_place, warming
from dray.cli.prefect_place import moved_database
from dray.cli.server import PrefectServer, configured
from dray.cli.with_prefect import _server, _the_flow
from dray.errors import ClusterError, ConfigError
from dray.storage import file_system

pytestmark = pytest.mark.unit

DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / "home"
    found.mkdir()
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("HOME", str(found))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prefect_place, "_LASTING", tmp_path / "local")
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments of the servers' processes, none of which lives."""
    seen: list[dict[str, str]] = []

    def popen(_: object, *, env: dict[str, str], **rest: object) -> Any:
        seen.append(env)
        raise BrokenPipeError

    monkeypatch.setattr("dray.cli.server.subprocess.Popen", popen)
    return seen


def _mount(home: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"30 1 0:30 / {home} rw - {kind} filer:/home rw\n"
    (tmp_path / "mounts").write_text(f"1 1 0:1 / / rw - ext4 /dev/vda rw\n{line}")
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mounts")


def test_a_home_of_this_machine_is_the_usual_place(home: Path, started: list[dict[str, str]]) -> None:
    with pytest.raises(BrokenPipeError):
        PrefectServer().warm_up()
    assert DATABASE not in started[0]


def test_a_home_on_a_network_keeps_no_database(
    home: Path, started: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines with servers of their own would damage one file of SQLite's."""
    _mount(home, "nfs4", tmp_path, monkeypatch)
    one = PrefectServer()
    with pytest.raises(BrokenPipeError):
        one.warm_up()
    place = tmp_path / "local" / f"dray-{os.getuid()}-prefect"
    assert started[0][DATABASE] == f"sqlite+aiosqlite:///{place}/prefect.db"
    assert "PREFECT_HOME" not in one.told  # profiles stay those of the user
    assert place.stat().st_mode & 0o777 == 0o700
    assert one.remark == (
        f"Prefect's own server keeps its database in {place}: {home}/.prefect is on a network's file system "
        "(nfs4), which other machines may write to"
    )


@pytest.mark.parametrize("where", ["environment", "profile", "file"])
def test_a_database_that_the_user_configured_stays(
    where: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mount(home, "lustre", tmp_path, monkeypatch)
    address = "postgresql+asyncpg://db.example/prefect"
    if where == "environment":
        monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", address)
    elif where == "profile":
        (home / ".prefect").mkdir()
        profile = f'active = "a"\n[profiles.a]\n{DATABASE} = "{address}"\n'
        (home / ".prefect" / "profiles.toml").write_text(profile)
    else:
        Path("prefect.toml").write_text(f'[server.database]\nconnection_url = "{address}"\n')
    assert moved_database({}) == ({}, None)
    assert moved_database({DATABASE: address}) == ({}, None)


def test_a_home_that_cannot_be_written_to(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root file system is read-only, or of a user without a folder."""
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != home and real(path, mode))
    monkeypatch.setattr(PrefectServer, "_go", lambda server: None)
    with _server() as run:
        assert run is not None
        place = tmp_path / "local" / f"dray-{os.getuid()}-prefect"
        assert os.environ["PREFECT_HOME"] == str(place)
        assert run.remark is not None
        assert run.remark.endswith(f"{home}/.prefect cannot be written to")
    assert "PREFECT_HOME" not in os.environ


def test_a_home_that_may_not_be_looked_into(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /root for another user, with `ENV HOME=/root` and `--user 1000`. Root may look everywhere."""
    real_stat, real_access = os.stat, os.access

    def stat(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        if isinstance(path, str | Path) and home in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real_stat(path, *rest, **more)

    def access(path: Any, mode: int) -> bool:
        return home not in (Path(path), *Path(path).parents) and real_access(path, mode)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", access)
    told, remark = moved_database({})
    place = tmp_path / "local" / f"dray-{os.getuid()}-prefect"
    assert told["PREFECT_HOME"] == str(place)
    assert told[DATABASE] == f"sqlite+aiosqlite:///{place}/prefect.db"
    assert remark is not None
    assert remark.endswith(f"{home}/.prefect cannot be written to")


def test_a_folder_that_others_may_have_made_is_not_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mount(home, "nfs", tmp_path, monkeypatch)
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    (tmp_path / "local" / f"dray-{os.getuid()}-prefect").symlink_to(theirs)
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(second))
    told, _ = moved_database({})
    assert told[DATABASE].startswith(f"sqlite+aiosqlite:///{second}/")


def test_a_user_without_a_home_is_told_to_set_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(ConfigError, match=r"HOME is not set, and user \d+ has no home .* set HOME to"):
        configured()
    monkeypatch.setenv("PREFECT_HOME", str(home))
    with pytest.raises(ConfigError, match="HOME is not set"):  # of Prefect's import: a RuntimeError
        _the_flow()


def test_a_server_that_did_not_start_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the environment of ``dray run``, which has a console of its own."""
    for name, value in warming._QUIET.items():
        monkeypatch.setenv(name, value)
    (home / ".prefect").mkdir()
    (home / ".prefect" / "prefect.db").write_bytes(b"not a database" * 100)
    server = PrefectServer()
    server.start()
    with pytest.raises(ClusterError, match=r"did not start \(.*file is not a database\); try `prefect"):
        server.wait()


def test_a_server_that_cannot_read_its_databases_address_shows_no_password() -> None:
    server = PrefectServer()
    server._process = cast("subprocess.Popen[bytes]", object())
    server._log = tempfile.TemporaryFile()  # noqa: SIM115  the server's
    server._log.write(
        b"sqlalchemy.exc.ArgumentError: no URL: 'postgresql+asyncpg://me:hidden-word@host:x/db'\n"
    )
    assert server._last_words() == "sqlalchemy.exc.ArgumentError"
    server._log.close()
