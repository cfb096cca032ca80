"""The store as advised commands name it: as written they find the job, and name nobody's login."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.cli.jobs import store_at
from dray.errors import CancelledError, JobBusyError, UnknownJobError
from dray.store import open_store, store_option
from tests.support.stores import ready_job

pytestmark = pytest.mark.unit


def test_a_file_is_named_so_that_commands_find_it(tmp_path: Path) -> None:
    for file in (tmp_path / "out" / "dray.db", tmp_path / "a b.db"):
        file.parent.mkdir(exist_ok=True)
        url = f"sqlite:///{file}"
        with open_store(url) as store:
            assert store_option(url) == store_option(str(file))
            told = store_option(url).removeprefix(" --store ").strip("'")
            with store_at(told) as found:
                assert found.url == store.url


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:secret@host/dray", "postgresql://host/dray?password=secret", "nonsense", "x://[", ""],
)
def test_a_database_names_no_user_and_no_host(url: str) -> None:
    assert store_option(url) == " --store URL"


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    with (
        open_store(f"sqlite:///{tmp_path / 'dray.db'}") as store,
        pytest.raises(UnknownJobError, match=rf"no job 'x' in .*`dray jobs --store {tmp_path}` lists"),
    ):
        store.get_job("x")


def test_a_cancelled_job_and_one_that_runs_say_commands_that_find_them(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'dray.db'}") as store:
        store.release_job(ready_job(store))
        lease = store.claim_job("job", "vm/7/1/a/b/c")
        follow = rf"by process 7 on vm, whose .*`dray status job --watch --store {tmp_path}` follows it"
        with pytest.raises(JobBusyError, match=follow):
            store.claim_job("job", "another")
        with pytest.raises(JobBusyError, match=rf"process 7 on vm; .*`dray cancel job --store {tmp_path}`"):
            store.bury_job("job")
        store.request_cancel("job")
        store.release_job(lease)
        with pytest.raises(CancelledError, match=rf"`dray resume job --store {tmp_path}` \(or --resume\)"):
            store.claim_job("job", "another")
