"""Files on their way to their names: written aside, then published in one step.

What must never happen is that a writer which stood still (a stopped process, a slow upload) wakes up and
puts its older file over that of its successor. So each writer's drafts have names of their own, which its
successor knows: ``Stage.tag`` is the driver's epoch. These steps, in this order, leave no window:

1. A writer completes its drafts.
2. The job's store records them, in a transaction that only the job's present driver gets through.
3. Files of another layout leave the folder (:mod:`dray.storage.retiring`). Then each draft gets its final
   name by a step that fails when the draft is gone: a rename, a copy on the object store's side, or the
   completion of an S3 upload.

A successor first becomes the job's driver, then removes all drafts of its predecessors (:func:`withdraw`),
and only then comes to its own step 3. A predecessor that got through step 2 had all its drafts by then, and
they are removed: its step 3 happens before its successor's, or not at all. One that did not is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType

from dray.storage import objects
from dray.storage.draft import CopiedDraft, Draft, LocalDraft, Stage
from dray.storage.exports import ExportLock
from dray.storage.files import FileInfo, join, local_path, writing
from dray.storage.layout import whole_names
from dray.storage.listings import list_under
from dray.storage.objects import ObjectStoreOptions, is_object, is_s3
from dray.storage.retiring import ASIDE, Retiring, remove_folder
from dray.triggers import Point, reach

_DRAFT = re.compile(
    r"(?:output|errors|report)(?:-\d{5})?-(?P<tag>[0-9a-z]+)"
    r"\.(?:html|(?:jsonl|parquet)(?:\.manifest\.json)?)\.part"
)
_ASIDE = re.compile(rf"{ASIDE}(?P<tag>[0-9a-z]+)")


class Drafts:
    """The drafts of one folder. What was not published when the block ends is removed."""

    def __init__(
        self, directory: str, *, stage: Stage | None = None, options: ObjectStoreOptions | None = None
    ) -> None:
        self._directory = directory
        self._stage = stage
        self._options = options
        self._drafts: dict[str, Draft] = {}
        self._settled: dict[str, FileInfo] = {}
        self._retiring = Retiring(directory, stage, options)
        self._lock: ExportLock | None = None
        if stage is not None and not stage.tag.isdigit() and not is_object(directory):
            self._lock = ExportLock(local_path(stage.folder), stage.tag)

    def __enter__(self) -> Drafts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for draft in self._drafts.values():
            draft.drop()
        self._retiring.close()
        if self._lock is not None:
            self._lock.close()

    def open(self, name: str, *, most: int = 0) -> Draft:
        """A new draft of the file ``name``, which may come to ``most`` bytes; 0 is for a small file."""
        uri = join(self._directory, name)
        self._retiring.look(name)
        draft = _draft(uri, name, self._stage, self._options, most)
        self._drafts[name] = draft
        return draft

    def replace_all(self) -> None:
        """Let files of other formats leave the folder as well: it was another's, and so are they."""
        for name in whole_names():
            self._retiring.look(name)

    def rename(self, name: str, to: str) -> bool:
        """Let a draft become the file ``to``; false where its store has fixed the name."""
        if not self._drafts[name].rename(join(self._directory, to)):
            return False
        self._drafts[to] = self._drafts.pop(name)
        return True

    def discard(self) -> None:
        """Remove all drafts that were opened so far: they are to be written anew."""
        for draft in self._drafts.values():
            draft.drop()
        self._drafts.clear()
        self._settled.clear()

    def finish(self, name: str) -> FileInfo:
        """Make a draft last that is complete, before others are opened."""
        if name not in self._settled:
            self._drafts[name].sync()
            self._settled[name] = self._drafts[name].info()
        return self._settled[name]

    def settle(self) -> dict[str, FileInfo]:
        """Write all drafts out to their storage, under names of their own; returns the files by their names.

        Where a disk is full, this fails: no file has its final name yet, and none was replaced.
        """
        return {name: self.finish(name) for name in self._drafts}

    def publish(self, record: Callable[[Mapping[str, FileInfo]], None] = lambda _infos: None) -> None:
        """Settle, call ``record``, remove files of another layout, and give each file its name.

        What ``record`` raises leaves things as they were.

        Raises:
            DraftGoneError: another writer has removed a draft since.
        """
        infos = self.settle()
        reach(Point.FINALISE_WRITTEN)
        record(infos)
        reach(Point.FINALISE_RECORDED)
        self._retiring.remove(infos)
        for _, draft in sorted(self._drafts.items()):
            draft.publish()
            reach(Point.FINALISE_RENAMED)


def withdraw(
    folder: str,
    *,
    older_than: int | None = None,
    below: bool = False,
    options: ObjectStoreOptions | None = None,
) -> None:
    """Remove the drafts in ``folder`` of all epochs under ``older_than``; of all writers when None.

    Their folders go as well: without them they remove nothing. ``below`` looks into the folders in it too.
    On S3 drafts lie in no folder: see ``s3_uploads.abort``.
    """
    for uri in _names_in(folder, below, options):
        if _is_older(_DRAFT.fullmatch(uri.rpartition("/")[2]), older_than):
            with suppress(FileNotFoundError):
                objects.delete(uri, options) if is_object(uri) else local_path(uri).unlink()
    if not is_object(folder):
        for path in local_path(folder).glob(f"{'**/' if below else ''}{ASIDE}*"):
            if _is_older(_ASIDE.fullmatch(path.name), older_than):
                with writing(str(path)):
                    remove_folder(path)


def _is_older(found: re.Match[str] | None, older_than: int | None) -> bool:
    """Whether it is a draft or a folder of a writer before the epoch; of any writer when that is None."""
    if found is None or older_than is None:
        return found is not None
    return found["tag"].isdigit() and int(found["tag"]) < older_than


def _names_in(folder: str, below: bool, options: ObjectStoreOptions | None) -> list[str]:
    if is_s3(folder):
        return []
    if is_object(folder):
        return [info.uri for info in list_under(folder.rstrip("/") + "/", options)]
    return [str(path) for path in local_path(folder).glob("**/*.part" if below else "*.part")]


def _draft(uri: str, name: str, stage: Stage | None, options: ObjectStoreOptions | None, most: int) -> Draft:
    if not is_object(uri):
        return LocalDraft(uri, name, stage)
    if is_s3(uri):
        from dray.storage.s3_uploads import UploadDraft

        return UploadDraft(uri, stage, options, most=most)
    return CopiedDraft(uri, name, stage, options)
