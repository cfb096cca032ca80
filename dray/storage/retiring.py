"""Files of an earlier layout leave the folder, before those of the new one get their names.

Answers in one file beside answers in parts would be two outputs, and nothing would say which one counts. A
driver that stood still must not remove what its successor has published. So a removal has a fence, as a
publication has one (:mod:`dray.storage.drafts`):

- A local file is moved into a folder of the driver's own, which is there before the store records anything.
  The successor removes that folder first of all, and a move into a folder that is gone fails.
- An object is deleted if it is the one that lay there when the driver began, which the driver looks at right
  before. S3 holds to that as well (``If-Match``), unless it is another upload of the very same bytes.
- Where a store knows no such condition, a driver that stands still between the look and the deletion may
  delete a file of its successor. The manifest tells.
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
from dray.storage.objects import ObjectStoreOptions, is_object, is_s3

ASIDE = "retired-"
"""How folders begin into which drivers move local files; the driver's tag follows."""

_TRIES = 100  # a driver of old may move a file into its folder while that is removed


class Retiring:
    """What is to leave one folder. ``stage`` says where its driver's own folder lies."""

    def __init__(self, directory: str, stage: Stage | None, options: ObjectStoreOptions | None) -> None:
        self._directory = directory
        self._options = options
        self._seen: dict[Family, dict[str, object]] = {}
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
            with writing(join(self._directory, name)):
                names = [] if self._aside else layout.found_in(self._directory, family, self._options)
                self._seen[family] = {name: self._look_at(join(self._directory, name)) for name in names}

    def remove(self, kept: Collection[str]) -> None:
        """Remove the files of the families in ``kept`` that are not in it, from the last to the first.

        Raises:
            DraftGoneError: another writer has the folder by now.
        """
        for family, seen in self._seen.items():
            there = layout.found_in(self._directory, family) if self._aside else list(seen)
            for name in reversed([name for name in there if name not in kept]):
                self._remove(join(self._directory, name), seen.get(name))

    def close(self) -> None:
        """Remove what was moved aside. What cannot be removed stays: it only costs room."""
        if self._aside is not None:
            with suppress(OSError):
                remove_folder(self._aside)

    def _remove(self, uri: str, seen: object) -> None:
        if self._aside is not None:
            self._move(uri, self._aside)
            return
        with writing(uri):
            if not self._delete(uri, seen):
                raise gone(uri)

    def _look_at(self, uri: str) -> object:
        """What tells an object from the next one of its name; None where there is none."""
        if _knows_conditions(uri):
            from dray.storage.s3_uploads import look_at

            return look_at(uri, self._options)
        with suppress(FileNotFoundError):
            return objects.head(uri, self._options).etag
        return None

    def _delete(self, uri: str, seen: object) -> bool:
        """Delete an object that is the one that was seen, or gone; false where it is another by now."""
        if _knows_conditions(uri):
            from dray.storage.s3_uploads import Seen, delete_unchanged

            return not isinstance(seen, Seen) or delete_unchanged(uri, seen, self._options)
        there = self._look_at(uri)
        if there is not None and there == seen:
            with suppress(FileNotFoundError):
                objects.delete(uri, self._options)
        return there in (None, seen)

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


def _knows_conditions(uri: str) -> bool:
    return is_s3(uri)


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
