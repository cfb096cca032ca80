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
import secrets
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from dray.errors import JobFailedError
from dray.storage import objects
from dray.storage.files import AtomicFile, FileInfo, clear, clear_abandoned, join, local_path, sync, writing
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.triggers import Point, reach


class DraftGoneError(JobFailedError):
    """A draft was removed, or what lies under its final name replaced, before it could be published."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a writer's drafts lie, and what they are called.

    ``folder`` is the job's own one. ``tag`` names the writer: the driver's epoch, or ``x`` and digits for an
    export. ``note`` is told the URI and id of every upload that lies in no folder, before its first byte.
    """

    folder: str
    tag: str
    note: Callable[[str, str], None] = lambda _uri, _upload: None

    def place(self, name: str) -> str:
        """Where the draft of a file lies."""
        stem, dot, ending = name.partition(".")
        return join(self.folder, f"{stem}-{self.tag}{dot}{ending}.part")


_DRAFT = re.compile(r"(?P<stem>output|errors|report)-(?P<tag>[0-9a-z]+)\.(jsonl|parquet|html)\.part")


class Draft(Protocol):
    """A file being written under a name of its own. ``size`` is in bytes."""

    uri: str
    rows: int
    size: int

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""

    def write(self, data: bytes) -> None:
        """Append bytes; JobFailedError where the place takes no more."""

    def sync(self) -> None:
        """Make what was written last, under the draft's own name."""

    def info(self) -> FileInfo:
        """Size and digest of what was written."""

    def publish(self) -> None:
        """Give the draft its final name; DraftGoneError when it is not there any more."""

    def drop(self) -> None:
        """Remove what is left of the draft."""


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
        """Settle, let ``record`` have its say, and give each file its name.

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


class LocalDraft(AtomicFile):
    """A local file under another name; its rename fails once that name is gone."""

    def __init__(self, uri: str, name: str, stage: Stage | None) -> None:
        self._target = local_path(uri)
        path = self._target.parent / f".{name}.{secrets.token_hex(4)}.part"
        with writing(uri):
            self._target.parent.mkdir(parents=True, exist_ok=True)
            if stage is None:
                clear(self._target.parent, name)
            else:
                path = local_path(stage.place(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                clear_abandoned(path.parent, "*-x*.part")  # of exports that were killed
                path.unlink(missing_ok=True)  # of an earlier try of this very writer
        super().__init__(uri, path, hashed=True)

    def publish(self) -> None:
        """Rename it, and make that last."""
        with writing(self.uri):
            try:
                self._path.replace(self._target)
            except FileNotFoundError as error:
                raise gone(self.uri) from error
            sync(self._target.parent)

    def drop(self) -> None:
        """Close it and remove it; a published one has another name by now."""
        self.discard()
        self._path.unlink(missing_ok=True)


class CopiedDraft(AtomicFile):
    """An object under another name, written to a local temporary file first, copied by its store at the end.

    Needs room for the whole file in the folder for temporary files (``TMPDIR``).
    """

    def __init__(self, uri: str, name: str, stage: Stage | None, options: ObjectStoreOptions | None) -> None:
        self._options = options
        tag = Stage(folder=uri.rpartition("/")[0], tag=secrets.token_hex(4))
        self._staged = (stage or tag).place(name)
        self._uploaded = False
        self._folder = tempfile.TemporaryDirectory(prefix="dray-upload-")
        super().__init__(uri, Path(self._folder.name) / name, hashed=True)

    def sync(self) -> None:
        """Upload it under the draft's name."""
        if self._uploaded:
            return
        self.close()
        self._uploaded = True
        with writing(self.uri):
            objects.upload(self._path, self._staged, self._options)

    def publish(self) -> None:
        """Let the store copy it to its final name."""
        with writing(self.uri):
            try:
                objects.copy(self._staged, self.uri, self._options)
            except FileNotFoundError as error:
                raise gone(self.uri) from error

    def drop(self) -> None:
        """Remove the local file and the draft."""
        self.discard()
        self._folder.cleanup()
        if self._uploaded:
            with suppress(OSError):
                objects.delete(self._staged, self._options)


def gone(uri: str) -> DraftGoneError:
    """Another writer was faster."""
    return DraftGoneError(f"{uri}: another run writes this file too; run the job again when that is over")
