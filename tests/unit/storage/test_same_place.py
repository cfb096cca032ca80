"""One folder, spelled in several ways, is one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.storage.same_place import name_in, same_place

pytestmark = pytest.mark.unit


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder, with ``link`` to it beside it, and ``deep/link`` to a folder elsewhere."""
    out = tmp_path / "out"
    for folder in (out / ".dray", tmp_path / "deep", tmp_path / "else" / "where", tmp_path / "else" / "out"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(out)
    (tmp_path / "deep" / "link").symlink_to(tmp_path / "else" / "where")
    return out


@pytest.mark.parametrize(
    "spelled", ["out", "out/", "deep/../out", "link", "out/.dray/..", "else/../deep/../link"]
)
def test_the_same_folder(out: Path, spelled: str) -> None:
    other = f"{out.parent}/{spelled}"
    assert same_place(str(out), other)
    assert same_place(f"file://{out}", other)
    assert name_in(str(out), f"{other}/.dray/requests-1.jsonl") == ".dray/requests-1.jsonl"
    assert name_in(other, f"{out}/.dray/requests-1.jsonl") == ".dray/requests-1.jsonl"


def test_what_is_above_a_link_is_the_kernel_s(out: Path) -> None:
    behind = f"{out.parent}/deep/link/../out"  # in else/, though the text says deep/
    assert same_place(behind, str(out.parent / "else" / "out"))
    assert not same_place(behind, str(out))


def test_folders_that_are_not_there(out: Path) -> None:
    assert same_place(f"{out}/new", f"{out.parent}/link/../out/new")
    assert not same_place(f"{out}/new", f"{out}/old")
    assert name_in(f"{out}/new", f"{out.parent}/link/file") is None


def test_a_link_below_the_folder_is_the_folder_s(out: Path) -> None:
    (out / ".dray" / "job").symlink_to(out.parent / "else")
    assert name_in(f"{out.parent}/link", f"{out}/.dray/job/file") == ".dray/job/file"


def test_uris_are_compared_as_they_are() -> None:
    assert same_place("s3://bucket/out", "s3://bucket/out/")
    assert not same_place("s3://bucket/out", "s3://bucket/in/../out")
    assert not same_place("s3://bucket/out", "/bucket/out")
