"""One file on its way to its name: a local file, or an object that its store copies.

Why a writer that stood still cannot publish any more: see :mod:`dray.storage.drafts`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from dray.errors import JobFailedError
from dray.storage import objects
from dray.storage.files import (
    UPLOADS,
    AtomicFile,
    FileInfo,
    clear,
    join,
    local_path,
    sync,
    writing,
)
from dray.storage.objects import ObjectStoreOptions
from dray.storage.retries import PATIENCE, with_retries
from dray.temporary import TemporaryFolder


class DraftGoneError(JobFailedError):
    """A draft was removed, or what lies under its final name replaced, before it could be published."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a writer's drafts lie, and what they are called.

    ``folder`` is the job's own one. ``tag`` names the writer: the driver's epoch, or ``x`` and digits for an
    export, which has a lock (:mod:`dray.storage.exports`). ``note`` is given the URI and id of every upload
    that lies in no folder, before its first byte.
    """

    folder: str
    tag: str
    note: Callable[[str, str], None] = lambda _uri, _upload: None

    def place(self, name: str) -> str:
        """Where the draft of a file lies."""
        stem, dot, ending = name.partition(".")
        return join(self.folder, f"{stem}-{self.tag}{dot}{ending}.part")


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

    def rename(self, uri: str) -> bool:
        """Give it another final name, before it is published; false where that is fixed by now."""

    def sync(self) -> None:
        """Make what was written last, under the draft's own name. Nothing is written after that."""

    def info(self) -> FileInfo:
        """Size and digest of what was written."""

    def publish(self) -> None:
        """Give the draft its final name; DraftGoneError when it is not there any more."""

    def drop(self) -> None:
        """Remove what is left of the draft."""


class LocalDraft(AtomicFile):
    """A local file under another name; its rename fails once that name is gone."""

    def __init__(self, uri: str, name: str, stage: Stage | None) -> None:
        self._target = local_path(uri)
        self._staged = stage is not None  # known by its epoch, or by its export's lock: it needs none itself
        path = self._target.parent / f".{name}.{secrets.token_hex(4)}.part"
        with writing(uri):
            self._target.parent.mkdir(parents=True, exist_ok=True)
            if stage is None:
                clear(self._target.parent, name)
            else:
                path = local_path(stage.place(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)  # of an earlier try of this very writer
        super().__init__(uri, path, hashed=True)

    def rename(self, uri: str) -> bool:
        """The draft itself keeps its name."""
        self.uri, self._target = uri, local_path(uri)
        return True

    def sync(self) -> None:
        """Everything on the disk. A staged draft is closed: a job of many parts has them all by its end."""
        super().sync()
        if self._staged:
            self.close()

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

    Needs room for the file in the folder for temporary files (``TMPDIR``) until it is complete.
    """

    def __init__(self, uri: str, name: str, stage: Stage | None, options: ObjectStoreOptions | None) -> None:
        self._options = options
        tag = Stage(folder=uri.rpartition("/")[0], tag=secrets.token_hex(4))
        self._staged = (stage or tag).place(name)
        self._uploaded = False
        self._folder = TemporaryFolder(UPLOADS)
        super().__init__(uri, self._folder.path / name, hashed=True)

    def rename(self, uri: str) -> bool:
        """The draft itself keeps its name."""
        self.uri = uri
        return True

    def sync(self) -> None:
        """Upload it under the draft's name; the local file has done its service."""
        if self._uploaded:
            return
        self.close()
        self._uploaded = True
        with writing(self.uri):
            with_retries(lambda: objects.upload(self._path, self._staged, self._options), PATIENCE)
        self._folder.remove()

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
        self._folder.remove()
        if self._uploaded:
            with suppress(OSError):
                objects.delete(self._staged, self._options)


def gone(uri: str) -> DraftGoneError:
    """Another writer was faster."""
    return DraftGoneError(f"{uri}: another run writes this file too; run the job again when that is over")
