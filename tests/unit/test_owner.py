"""The name of a driver, and how its death is noticed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dray import owner
from dray.errors import JobBusyError
from dray.owner import is_gone, owner_name
from dray.store import open_store
from tests.support.stores import ready_job

pytestmark = pytest.mark.unit

HERE = owner_name().split("/")[4:]


def _name_of(pid: int) -> str:
    started = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return "/".join([socket.gethostname(), str(pid), started, "0", *HERE])


def test_this_process_is_there() -> None:
    assert not is_gone(owner_name())
    assert owner_name() != owner_name()


def test_a_killed_process_is_gone_even_as_a_zombie() -> None:
    process = subprocess.Popen(["sleep", "60"])
    name = _name_of(process.pid)
    assert not is_gone(name)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    assert is_gone(name)
    process.wait()
    assert is_gone(name)


def test_a_pid_that_was_given_to_another_process_is_another_driver() -> None:
    host, pid, started, unique, *space = owner_name().split("/")
    assert is_gone("/".join([host, pid, str(int(started) - 1), unique, *space]))


@pytest.mark.parametrize(
    "owner",
    [
        "",
        "driver",
        "/".join(["elsewhere", "1", "2", "3", *HERE]),
        "/".join([socket.gethostname(), "x", "1", "2", *HERE]),
        f"{socket.gethostname()}/{2**22}/1/2",  # of an earlier version, which named no namespace
        f"{socket.gethostname()}/{2**22}/1/2/{HERE[0]}/1",  # another container of this machine
        f"{socket.gethostname()}/{2**22}/1/2/00000000/{HERE[1]}",  # another machine of this name
    ],
)
def test_nothing_is_known_of_other_machines_and_containers(owner: str) -> None:
    assert not is_gone(owner)


def test_a_process_that_is_gone_is_known_by_the_same_name() -> None:
    assert is_gone("/".join([socket.gethostname(), str(2**22), "1", "2", *HERE]))


def test_without_a_proc_of_its_own_a_process_knows_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new pid namespace that still shows the /proc of the machine, where pids are other processes."""
    gone = "/".join([socket.gethostname(), str(2**22), "1", "2", *HERE])
    assert is_gone(gone)
    (tmp_path / "self").symlink_to("1")
    monkeypatch.setattr(owner, "_PROC", tmp_path)
    assert not is_gone(gone)
    assert not is_gone(owner_name())


@pytest.mark.parametrize("hidden", ["by hidepid=1", "by hidepid=2"])
def test_a_live_process_of_another_user_that_proc_hides_is_not_gone(
    hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "ns").symlink_to("/proc/self/ns")
    (tmp_path / "sys").symlink_to("/proc/sys")
    real = Path.readlink
    named = Path(str(os.getpid()))
    monkeypatch.setattr(Path, "readlink", lambda path: named if path.name == "self" else real(path))

    def refused(pid: int, signal: int) -> None:
        assert signal == 0
        raise PermissionError if pid == 4321 else ProcessLookupError

    monkeypatch.setattr(os, "kill", refused)
    monkeypatch.setattr(owner, "_PROC", tmp_path)
    if hidden == "by hidepid=1":  # its folder shows, and no file in it
        (tmp_path / "4321" / "stat").mkdir(parents=True)
    space = "/".join(owner._space())
    assert not is_gone(f"{socket.gethostname()}/4321/7/0/{space}")
    assert is_gone(f"{socket.gethostname()}/4322/7/0/{space}")
    (tmp_path / "4323").mkdir()
    (tmp_path / "4323" / "stat").write_text("4323 (zombie) Z 1")
    assert is_gone(f"{socket.gethostname()}/4323/7/0/{space}")


_SECOND = """
import sys
from dray.errors import JobBusyError
from dray.owner import is_gone, owner_name
from dray.store import open_store
with open_store(sys.argv[1], create=False) as store:
    try:
        store.claim_job("job", owner_name(), takeover=is_gone)
    except JobBusyError:
        sys.exit(42)
"""


def test_a_live_driver_outlives_a_container_with_its_host_name(tmp_path: Path) -> None:
    """Two containers with the host's network: one host name, two pid namespaces."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        unshare = ["unshare", "--user", "--map-root-user", *unshare[1:]]
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            pytest.skip("this machine lets nobody make a pid namespace; the names above stand for them")
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        ready_job(store)
        store.release_job(store.claim_job("job", "driver"))
        lease = store.claim_job("job", owner_name(), takeover=is_gone)
        second = subprocess.run(
            [*unshare, sys.executable, "-c", _SECOND, url], capture_output=True, text=True
        )
        assert second.returncode == 42, second.stderr
        store.renew_job(lease)  # FencedError, had the second one taken it
        with pytest.raises(JobBusyError):
            store.claim_job("job", owner_name(), takeover=is_gone)
