"""Files of an earlier layout leave the folder, before those of the new one get their names.

Answers in one file beside answers in parts would be two outputs, and nothing would say which one counts. A
driver that stood still must not remove what its successor has published. So a removal has a fence, as a
publication has one (:mod:`dray.storage.drafts`):

- A local file is moved into a folder of the driver's own, which is there before the store records anything.
  The successor removes that folder first of all, and a move into a folder that is gone fails.
- An object of S3 is deleted on the condition that it is the one that lay there when the driver began.
- Of other stores the driver asks, right before it deletes an object, whether it is still that one: a driver
  that stands still between the two requests may delete a file of its successor. The manifest tells.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from dray.storage import layout, objects
from dray.storage.draft import Stage, gone
from dray.storage.files import join, local_path, sync, writing
from dray.storage.layout import Family
from dray.storage.objects import ObjectStoreOptions, is_object

ASIDE = "retired-"
"""How folders begin into which drivers move local files; the driver's tag follows."""

_TRIES = 100  # a driver of old may move a file into its folder while that is removed


class Retiring:
    """What is to leave one folder. ``stage`` says where its driver's own folder lies."""

    def __init__(self, directory: str, stage: Stage | None, options: ObjectStoreOptions | None) -> None:
        self._directory = directory
        self._options = options
        self._seen: dict[Family, dict[str, str | None]] = {}
        self._aside: Path | None = None
        if not is_object(directory):
            own = f"{ASIDE}{stage.tag}" if stage else f".{ASIDE}{secrets.token_hex(4)}"
            self._aside = local_path(join(stage.folder if stage else directory, own))
            if stage is not None:
                if not stage.tag.isdigit():  # exports know no predecessors: one that lives fails
                    for path in self._aside.parent.glob(f"{ASIDE}x*"):
                        remove_folder(path)
                self._make()

    def look(self, name: str) -> None:
        """A file is begun: see which objects lie there now. Later ones are another writer's."""
        family = layout.family_of(name)
        if family is not None and family not in self._seen:
            there = {} if self._aside else layout.found_in(self._directory, family, self._options)
            self._seen[family] = there

    def remove(self, kept: Collection[str]) -> None:
        """Remove the files of the families in ``kept`` that are not in it, from the last to the first.

        Raises:
            DraftGoneError: another writer has the folder by now.
        """
        for family, seen in self._seen.items():
            there = layout.found_in(self._directory, family) if self._aside else seen
            for name in reversed([name for name in there if name not in kept]):
                self._remove(join(self._directory, name), there[name])

    def close(self) -> None:
        """Remove what was moved aside. What cannot be removed stays: it only costs room."""
        if self._aside is not None:
            with suppress(OSError):
                remove_folder(self._aside)

    def _remove(self, uri: str, etag: str | None) -> None:
        if self._aside is not None:
            self._move(uri, self._aside)
            return
        with writing(uri):
            if not _delete_unchanged(uri, etag, self._options):
                raise gone(uri)

    def _move(self, uri: str, aside: Path) -> None:
        path = local_path(uri)
        if aside.name.startswith("."):  # a writer without a stage has no successor
            self._make()
        with writing(uri):
            try:
                path.rename(aside / path.name)
            except FileNotFoundError as error:
                if aside.is_dir():
                    return  # the file is gone
                raise gone(uri) from error
            sync(path.parent)

    def _make(self) -> None:
        assert self._aside is not None
        with writing(str(self._aside)):
            self._aside.mkdir(parents=True, exist_ok=True)


def _delete_unchanged(uri: str, etag: str | None, options: ObjectStoreOptions | None) -> bool:
    """Delete an object that is the one with this ETag, or gone; false where it is another by now."""
    if _knows_conditions(uri) and etag is not None:
        from dray.storage.s3_uploads import delete_unchanged

        return delete_unchanged(uri, etag, options)
    with suppress(FileNotFoundError):
        if objects.head(uri, options).etag != etag:
            return False
        objects.delete(uri, options)
    return True


def _knows_conditions(uri: str) -> bool:
    return uri.startswith("s3://")


def remove_folder(path: Path) -> None:
    """Remove a driver's folder: nothing can be moved into it any more.

    Raises:
        OSError: it is still there.
    """
    for left in reversed(range(_TRIES)):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if not path.exists():  # else a file in it was removed by another process
                return
        except OSError:
            if not left:
                raise
        else:
            return
