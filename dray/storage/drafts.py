"""Files on their way to their names: written aside, then published in one step.

What must never happen is that a writer which stood still (a stopped process, a slow upload) wakes up and
puts its older file over that of its successor. So each writer's drafts have names of their own, which its
successor knows: ``Stage.tag`` is the driver's epoch. These steps, in this order, leave no window:

1. A writer completes its drafts.
2. The job's store records them, in a transaction that only the job's present driver gets through.
3. Each draft gets its final name by a step that fails when the draft is gone: a rename, a copy on the object
   store's side, or the completion of an S3 upload.

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
from dray.storage.files import FileInfo, join, local_path
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.triggers import Point, reach

_DRAFT = re.compile(r"(?P<stem>output|errors|report)-(?P<tag>[0-9a-z]+)\.(jsonl|parquet|html)\.part")


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

    def __enter__(self) -> Drafts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for draft in self._drafts.values():
            draft.drop()

    def open(self, name: str) -> Draft:
        """A new draft of the file ``name``."""
        uri = join(self._directory, name)
        draft = _draft(uri, name, self._stage, self._options)
        self._drafts[name] = draft
        return draft

    def settle(self) -> dict[str, FileInfo]:
        """Make all drafts last, while none has its name: a full disk says so now."""
        for name, draft in self._drafts.items():
            if name not in self._settled:
                draft.sync()
                self._settled[name] = draft.info()
        return dict(self._settled)

    def publish(self, record: Callable[[Mapping[str, FileInfo]], None] = lambda _infos: None) -> None:
        """Settle, call ``record``, and give each file its name.

        What ``record`` raises leaves things as they were.

        Raises:
            DraftGoneError: another writer has removed a draft since.
        """
        infos = self.settle()
        reach(Point.FINALISE_WRITTEN)
        record(infos)
        reach(Point.FINALISE_RECORDED)
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

    ``below`` looks into the folders in it too. On S3 drafts lie in no folder: see ``s3_uploads.abort``.
    """
    for uri in _names_in(folder, below, options):
        draft = _DRAFT.fullmatch(uri.rpartition("/")[2])
        if draft is None:
            continue
        if older_than is None or (draft["tag"].isdigit() and int(draft["tag"]) < older_than):
            with suppress(FileNotFoundError):
                objects.delete(uri, options) if is_object(uri) else local_path(uri).unlink()


def _names_in(folder: str, below: bool, options: ObjectStoreOptions | None) -> list[str]:
    if _is_s3(folder):
        return []
    if is_object(folder):
        return [info.uri for info in objects.list_under(folder.rstrip("/") + "/", options)]
    return [str(path) for path in local_path(folder).glob("**/*.part" if below else "*.part")]


def _is_s3(uri: str) -> bool:
    return uri.startswith("s3://")


def _draft(uri: str, name: str, stage: Stage | None, options: ObjectStoreOptions | None) -> Draft:
    if not is_object(uri):
        return LocalDraft(uri, name, stage)
    if _is_s3(uri):
        from dray.storage.s3_uploads import UploadDraft

        return UploadDraft(uri, stage, options)
    return CopiedDraft(uri, name, stage, options)
