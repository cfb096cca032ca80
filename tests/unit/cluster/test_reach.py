"""What a stable node says of the store and of the requests, asked on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dray.cluster import reach
from dray.cluster.reach import Needs, Reached, _reached
from dray.store import open_store

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_LOOK_SECONDS", 0.0)


def _needs(folder: Path) -> Needs:
    return Needs(store_url=f"sqlite:///{folder}/dray.db", requests=f"{folder}/requests.jsonl")


def test_a_node_that_reaches_both_has_nothing_to_say(tmp_path: Path) -> None:
    open_store(_needs(tmp_path).store_url).close()
    (tmp_path / "requests.jsonl").write_text('{"i":0}\n')
    assert _reached("node", _needs(tmp_path)) == Reached("node")


def test_a_node_says_what_it_does_not_reach(tmp_path: Path) -> None:
    found = _reached("node", _needs(tmp_path))
    assert found.host == "node"
    assert found.requests == "no such file"
    assert found.store is not None
    assert found.store.endswith("dray.db: no such file")


def test_requests_that_cannot_be_read_are_named_by_the_kind_of_error(tmp_path: Path) -> None:
    """The message of an error may quote what a server said."""
    open_store(_needs(tmp_path).store_url).close()
    (tmp_path / "requests.jsonl").mkdir()
    assert _reached("node", _needs(tmp_path)).requests == "IsADirectoryError"


def test_a_folder_of_images_that_is_not_there_is_named(tmp_path: Path) -> None:
    roots = (str(tmp_path), "s3://bucket/photos", f"{tmp_path}/photos")
    found = _reached("node", replace(_needs(tmp_path), roots=roots))
    assert found.files == f"no folder {tmp_path}/photos"
    assert _reached("node", replace(_needs(tmp_path), roots=roots[:2])).files is None


def test_needs_show_no_password() -> None:
    assert "secret" not in repr(Needs(store_url="postgresql://u:secret@h/d", requests=None))
