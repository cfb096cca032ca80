"""Whose an output folder is: a marker in it, ``.dray/owner.json``, names the one job that writes there.

Two jobs never take one folder: a local marker appears by a link, which fails where there is one, and an
object by a conditional put (``If-None-Match``). A file system without links (FAT, some of a network) has a
marker created that is not there yet, and then written. A store that knows no conditional puts lets the last
of two jobs that start within the same moment have the folder; the other one sees that before it publishes.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from dray.errors import ConfigError, JobFailedError
from dray.storage import objects
from dray.storage.drafts import withdraw
from dray.storage.files import exists, join, local_path, sync, writing
from dray.storage.layout import family_of, found_in
from dray.storage.objects import ObjectStoreOptions, is_object

WORK = ".dray"
"""dray's own folder in every output folder."""

_IDENTITY_DIGITS = 12  # of 32, in the names of folders
_WRITTEN_SECONDS = 2.0  # in which a marker that was created has its bytes
# As file systems without hard links say it, each in its way.
_NO_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
    errno.EINVAL,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Who writes to a folder. ``identity`` tells jobs of one name in different stores apart."""

    job_id: str
    identity: str

    @property
    def of_export(self) -> Owner:
        """Exports of the job: they may replace each other, and nothing of the job itself."""
        return Owner(job_id=self.job_id, identity=f"export of {self.identity}")

    def __str__(self) -> str:
        what = "an export of job" if self.identity.startswith("export of ") else "job"
        return f"{what} {self.job_id}"


def work_of(directory: str, owner: Owner) -> str:
    """The folder of the owner's own files: no other job has one of this name, also where their ids are equal.

    So a job that was deleted, and a driver of it that wakes up, meet no file of a newer job.
    """
    return join(join(directory, WORK), f"{owner.job_id}-{owner.identity[:_IDENTITY_DIGITS]}")


def owner_of(directory: str, options: ObjectStoreOptions | None = None) -> Owner | None:
    """The owner that has marked the folder as its own; None where there is no marker.

    Raises:
        ConfigError: the marker cannot be read.
    """
    try:
        return _owner_in(_read(_marker(directory), options))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{_marker(directory)}: cannot be read ({type(error).__name__}), so dray does not know whose "
            "files these are; name another folder with --output, or remove that file"
        ) from error


def refuse_foreign(
    directory: str,
    owner: Owner | None,
    names: Sequence[str],
    *,
    legacy: bool = False,
    options: ObjectStoreOptions | None = None,
) -> None:
    """Refuse a folder whose files are not the owner's. ``owner`` None is a job that has no name yet.

    ``names`` are the files that are to be written. ``legacy`` says that this was the job's folder from its
    start, so that its files are the job's also without a marker: an earlier version of dray wrote none.

    Raises:
        ConfigError: says whose the folder is, and what to do.
    """
    found = owner_of(directory, options)
    if found is not None and found != owner:
        raise ConfigError(
            f"{directory}: the folder belongs to {_told(found, owner)}; name another folder with --output, "
            "or replace its files with --overwrite"
        )
    if found is None and not legacy:
        there = [found for name in names for found in _of_others(directory, name, options)]
        if there:
            raise ConfigError(
                f"{directory}: holds {' and '.join(there)}, which this job has not written (a deleted job "
                "leaves its files); name another folder with --output, or replace them with --overwrite"
            )


def _told(found: Owner | None, owner: Owner | None) -> str:
    """Whose a folder is, for the ``owner`` that may not have it: two jobs of one name are told apart."""
    if found is None or owner is None or found.job_id != owner.job_id:
        return str(found or "another job")  # one that has given the folder up this moment
    if owner == found.of_export or found == owner.of_export:  # one job, and an export of it
        return str(found)
    return (
        f"{found} of another store (give that one with --store), or of this store, before it was "
        "restored or the job was deleted"
    )


def _of_others(directory: str, name: str, options: ObjectStoreOptions | None) -> list[str]:
    """The file of this name, where it is there, and the first of those that stand for it in parts."""
    family = family_of(name)
    if family is not None:
        return found_in(directory, family, options)[:2]
    return [name] if exists(join(directory, name), options=options) else []


def take(
    directory: str, owner: Owner, *, overwrite: bool = False, options: ObjectStoreOptions | None = None
) -> None:
    """Mark the folder as the owner's; where it is so already, nothing happens.

    ``overwrite`` takes it from another owner, whose drafts are removed: it publishes nothing there any more.

    Raises:
        ConfigError: another job was faster, or the folder is another's.
        JobFailedError: the folder cannot be written.
    """
    content = orjson.dumps(asdict(owner), option=orjson.OPT_INDENT_2)
    with writing(_marker(directory)):
        found = owner_of(directory, options)
        if found is not None or not _create(_marker(directory), content, options):
            found = found or owner_of(directory, options)
            if found == owner:
                return
            if not overwrite:
                raise ConfigError(
                    f"{directory}: the folder belongs to {_told(found, owner)}; name another folder"
                )
            _replace(_marker(directory), content, options)
            withdraw(join(directory, WORK), below=True, options=options)
    if owner_of(directory, options) != owner:  # a store without conditional puts, and another job
        raise ConfigError(f"{directory}: another job takes this folder too; name another one")


def confirm(directory: str, owner: Owner, options: ObjectStoreOptions | None) -> None:
    """Make sure that the folder is still the owner's.

    Raises:
        JobFailedError: another job was given the folder.
    """
    found = owner_of(directory, options)
    if found != owner:
        raise JobFailedError(
            f"{directory}: the folder belongs to {found or 'no job'} by now, and nothing was written there; "
            f"`dray export {owner.job_id} --output FOLDER` writes this job's rows elsewhere"
        )


def give_up(directory: str, owner: Owner, options: ObjectStoreOptions | None = None) -> None:
    """Remove the marker, where it is the owner's.

    A local one is first renamed, and comes back where another job has put its own there at that moment.
    """
    if owner_of(directory, options) != owner:
        return
    marker = _marker(directory)
    with suppress(FileNotFoundError):
        if is_object(marker):
            objects.delete(marker, options)
            return
        path = local_path(marker)
        aside = path.with_name(f"owner-{secrets.token_hex(4)}")
        path.replace(aside)
        if _owner_in(aside.read_bytes()) != owner:
            _link(aside, path)
        aside.unlink()


def _owner_in(content: bytes) -> Owner:
    found = orjson.loads(content)
    return Owner(job_id=str(found["job_id"]), identity=str(found["identity"]))


def _marker(directory: str) -> str:
    return join(join(directory, WORK), "owner.json")


def _read(uri: str, options: ObjectStoreOptions | None) -> bytes:
    if is_object(uri):
        return b"".join(objects.stream_whole(uri, options))
    deadline = time.monotonic() + _WRITTEN_SECONDS
    while not (content := local_path(uri).read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.05)  # another job creates it without a link: its bytes come in a moment
    return content


def _create(uri: str, content: bytes, options: ObjectStoreOptions | None) -> bool:
    """Write the marker unless there is one; false when there is."""
    if is_object(uri):
        return objects.create(uri, content, options)
    path = local_path(uri)
    draft = path.with_name(f"owner-{secrets.token_hex(4)}")
    try:
        _write_new(draft, content)
        return _link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _write_new(draft: Path, content: bytes) -> None:
    """Write a file beside the marker; again where a deletion has just removed the empty folder."""
    for left in reversed(range(10)):
        try:
            draft.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
        except (FileNotFoundError, FileExistsError):
            if not left:
                raise
            time.sleep(0.005)
        else:
            break
    sync(draft)


def _link(draft: Path, path: Path) -> bool:
    """Give a file the marker's name too, unless there is a marker; false when there is."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not _copy_exclusively(draft, path):
            return False
    sync(path.parent)
    return True


def _copy_exclusively(draft: Path, path: Path) -> bool:
    """Copy a file where there are no links, as :func:`_link` would. A copy that is not whole is removed."""
    content = draft.read_bytes()
    try:
        file = path.open("xb")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def _replace(uri: str, content: bytes, options: ObjectStoreOptions | None) -> None:
    if is_object(uri):
        objects.put(uri, content, options)
        return
    path = local_path(uri)
    draft = path.with_name(f"owner-{secrets.token_hex(4)}")
    draft.write_bytes(content)
    sync(draft)
    draft.replace(path)
    sync(path.parent)
