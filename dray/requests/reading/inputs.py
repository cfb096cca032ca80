"""The files that the user names: paths, URIs and globs into a list, and the list into a digest."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from dray.errors import InputError, Problem
from dray.requests.reading.closed_folders import existing_above, refuse_closed
from dray.requests.reading.dataset_hints import told_of_dataset, told_of_other
from dray.requests.reading.formats import known_ending, told_of_folder
from dray.storage import objects, remote
from dray.storage.addresses import HUB
from dray.storage.datasets import AbsentError, DatasetError, address_of, is_dataset
from dray.storage.files import folder_named, local_path, reading, refused
from dray.storage.folders import WORK
from dray.storage.listings import tell_odd
from dray.storage.objects import ObjectInfo, ObjectStoreOptions, is_object, is_web
from dray.storage.remote import is_remote
from dray.storage.retries import while_busy

_WILDCARD = re.compile(r"[*?\[]")
_AT_ONCE = 16  # requests to a store


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRef:
    """One input file: URI or path, bytes, and the store's version of it if any.

    The URI is as the user gave it, but that of a dataset's file names the commit.
    """

    uri: str
    size: int
    version: str | None = None


def expand(inputs: Sequence[str], *, options: ObjectStoreOptions | None = None) -> list[FileRef]:
    """The files that paths, URIs and globs name: in the order given, sorted within a glob.

    Raises InputError naming everything that is missing, no file, unreadable or named twice.
    """
    found: list[FileRef] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for item in inputs:
        try:
            refs = _expand_one(item, options)
        except InputError as error:
            problems.extend(error.problems)
            continue
        for ref in refs:
            key = ref.uri if is_remote(ref.uri) else os.path.realpath(local_path(ref.uri))
            if key in seen:
                problems.append(Problem("duplicate_input", "the file is named twice; name it once", ref.uri))
            seen.add(key)
            found.append(ref)
    if not inputs:
        problems.append(Problem("missing_input", "no input was named"))
    if problems:
        raise InputError(problems[:20], total=len(problems))
    return found


def pattern_for(uri: str, inputs: Sequence[str]) -> str | None:
    """The pattern among ``inputs`` that a file at ``uri`` would match; None where there is none."""
    return next((item for item in inputs if _would_match(item, uri)), None)


def _would_match(item: str, uri: str) -> bool:
    if is_remote(item) != is_remote(uri) or is_web(item) or not _WILDCARD.search(item):
        return False
    if is_remote(item):
        return _glob_pattern(item).fullmatch(uri) is not None
    path = local_path(item)
    if path.exists():
        return False
    pattern = local_pattern(path)
    if not path.is_absolute():
        pattern = f"{glob.escape(str(Path.cwd()))}/{pattern}"
    return _matches(_parts(str(local_path(uri))), _parts(pattern))


def _parts(path: str) -> list[str]:
    return os.path.abspath(path).split("/")  # noqa: PTH100  Path.absolute() leaves '..' in


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether ``glob`` would find a path, part by part: a name with a dot first needs one in the pattern."""
    if not path or not pattern:
        return not path and not any(part != "**" for part in pattern)
    first, rest = pattern[0], pattern[1:]
    hidden = path[0].startswith(".") and not first.startswith(".")
    if first == "**":
        return _matches(path, rest) or (not hidden and _matches(path[1:], pattern))
    return not hidden and fnmatchcase(path[0], first) and _matches(path[1:], rest)


def digest(refs: Sequence[FileRef], *, options: ObjectStoreOptions | None = None) -> str:
    """One hex digest for what the files hold, whatever they are called.

    Of the content for local files and for objects without a version; of size and version otherwise.
    """
    total = hashlib.sha256()
    for ref in refs:
        if is_remote(ref.uri) and ref.version:
            part = f"version:{ref.size}:{ref.version}"
        else:
            part = f"content:{ref.size}:{_content_digest(ref, options)}"
        total.update(f"{part}\n".encode())
    return total.hexdigest()


def states(refs: Sequence[FileRef]) -> dict[str, str]:
    """For each file, what changes when its content does: an object's version, a local file's inode and times.

    Cheap beside :func:`digest`, which it does not replace: the same content may have another state.
    """
    return {ref.uri: _state(ref) for ref in refs}


def refuse_changed(before: Mapping[str, str], refs: Sequence[FileRef]) -> None:
    """Refuse an input whose files are in other states than ``before``, or are others.

    Raises:
        InputError: names each of them.
    """
    now = states(refs)
    odd = sorted(uri for uri in {*before, *now} if before.get(uri) != now.get(uri))
    told = "it changed, came or went while dray read the input; start the job again once the files stay"
    if odd:
        raise InputError([Problem("unreadable_input", told, uri) for uri in odd[:20]], total=len(odd))


def _state(ref: FileRef) -> str:
    if is_remote(ref.uri):
        return f"{ref.size} {ref.version}"
    with reading(ref.uri):
        found = local_path(ref.uri).stat()
    return f"{found.st_size} {found.st_dev} {found.st_ino} {found.st_mtime_ns}"


def refuse_odd(names: Sequence[str]) -> None:
    """Refuse what is local among ``names`` and no file: a folder, with what it holds, a pipe, a device.

    Opening a pipe waits for whatever writes to it, and what it gives can be read only once.

    Raises:
        InputError: names each of them, and what to do.
    """
    local = [name for name in names if "://" not in name or name.startswith("file://")]
    found = [(name, _oddity(local_path(name))) for name in local]
    problems = [Problem(*oddity, name) for name, oddity in found if oddity is not None]
    if problems:
        raise InputError(problems[:20], total=len(problems))


def _refuse_undecodable(paths: Sequence[Path]) -> None:
    """No store and no report keeps a name that is not UTF-8."""
    odd = [str(path) for path in paths if not _is_text(str(path))]
    shown = [name.encode("utf-8", "backslashreplace").decode() for name in odd]
    told = "the name of the file is not UTF-8; rename the file"
    if shown:
        raise InputError([Problem("invalid_text", told, name) for name in shown[:20]], total=len(shown))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_ODD = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _oddity(path: Path) -> tuple[str, str] | None:
    """Code and words for what is there in place of a file; None for a file, and where there is nothing."""
    try:
        if path.is_dir():
            return "missing_input", told_of_folder(path)
        kind = _ODD.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return None  # opening it reports that
    if kind is None:
        return None
    told = (
        f"{kind}, no file, and dray reads its input more than once; write the rows to a file, and name that"
    )
    return "unreadable_input", told


def _expand_one(item: str, options: ObjectStoreOptions | None) -> list[FileRef]:
    if item.startswith(HUB) and not is_dataset(item):
        raise refused("missing_input", told_of_other(item), item)
    if "://" in item and not item.startswith("file://") and not is_remote(item):
        raise refused(
            "missing_input", f"unknown scheme; dray reads {', '.join(objects.SCHEMES)}, hf and files", item
        )
    with reading(item):
        if is_dataset(item):
            return _expand_dataset(item)
        return _expand_object(item, options) if is_remote(item) else _expand_local(item)


def _expand_local(item: str) -> list[FileRef]:
    path = local_path(item)
    _refuse_undecodable([path])
    refuse_odd([item])
    if path.exists() or not _WILDCARD.search(str(path)):
        return [FileRef(uri=item, size=path.stat().st_size)]
    refuse_closed(path)
    found = glob.glob(local_pattern(path), recursive=True)  # noqa: PTH207  takes absolute patterns
    matches = [Path(name) for name in sorted(found)]
    _refuse_undecodable(matches)
    folders = {match for match in matches if match.is_dir()}
    files = [match for match in matches if match not in folders]
    _refuse_named_as_files(folders, files)
    refuse_odd([str(file) for file in files])
    if not files:
        raise refused("missing_input", "the pattern matches no file", item)
    return [_local_ref(file) for file in files]


def _refuse_named_as_files(folders: Collection[Path], files: Sequence[Path]) -> None:
    """Refuse such folders, as Spark writes them, unless the same pattern names the files below them."""
    named = {folder for folder in folders if known_ending(folder.name)}
    if named:
        named -= {folder for file in files for folder in file.parents}
    refuse_odd([str(folder) for folder in sorted(named)])


def _local_ref(file: Path) -> FileRef:
    with reading(str(file)):  # what a link leads to may be gone
        return FileRef(uri=str(file), size=file.stat().st_size)


def local_pattern(path: Path) -> str:
    """A pattern as ``glob`` takes it. The names of its folders may hold these signs themselves."""
    there = existing_above(path)
    return str(Path(glob.escape(str(there))) / path.relative_to(there))


def _expand_dataset(item: str) -> list[FileRef]:
    """The files of a dataset, each with its commit."""
    at, why = address_of(item), ""
    if at.path and not at.path.endswith("/"):
        try:
            refs, why = _refs(remote.pinned(item), None), "the pattern matches no file; "
        except AbsentError as error:
            refs, why = [], f"{error}; "
        if refs:
            return refs
    try:
        hint = told_of_dataset(at)
    except DatasetError:
        if not why:
            raise
        hint = "check the path"
    raise refused("missing_input", f"{why}{hint}", item)


def _expand_object(item: str, options: ObjectStoreOptions | None) -> list[FileRef]:
    if item.endswith("/") and not is_web(item):
        raise folder_named(item)
    refs = _refs(item, options)
    if not refs:
        raise refused("missing_input", "the pattern matches no object", item)
    return refs


def _refs(item: str, options: ObjectStoreOptions | None) -> list[FileRef]:
    """What an address or a pattern names elsewhere; a pattern may match nothing.

    No pattern matches the requests that jobs keep, unless it names dray's folder. Of local files ``glob``
    leaves them out, as the folder's name begins with a dot.
    """
    if is_web(item) or not _WILDCARD.search(item):
        return [_ref(remote.head(item, options))]
    with suppress(OSError):  # a name may hold these signs itself
        return [_ref(remote.head(item, options))]
    found = while_busy(lambda: sorted(_matching(item, options), key=lambda info: (info.uri, info.size)))
    own = f"/{WORK}/"
    files = _without_markers([info for info in found if own in item or own not in info.uri], options)
    return list({info.uri: _ref(info) for info in files}.values())


def _without_markers(found: Sequence[ObjectInfo], options: ObjectStoreOptions | None) -> list[ObjectInfo]:
    """Without the empty objects that stand for folders, as Spark and S3's console write: ``out.parquet/``.

    Listings have them without the slash, under a name that no object has.
    """

    def is_file(info: ObjectInfo) -> bool:
        try:
            with suppress(PermissionError):  # to be told when it is read
                remote.head(info.uri, options)
        except FileNotFoundError:
            return False
        return True

    empty = [info for info in found if info.size == 0 and is_object(info.uri)]
    with ThreadPoolExecutor(_AT_ONCE, "dray-inputs") as pool:
        there = list(pool.map(is_file, empty))
    markers = {info.uri for info, is_there in zip(empty, there, strict=True) if not is_there}
    return [info for info in found if info.uri not in markers]


def _ref(info: ObjectInfo) -> FileRef:
    return FileRef(uri=info.uri, size=info.size, version=info.version)


def _matching(item: str, options: ObjectStoreOptions | None) -> Iterator[ObjectInfo]:
    """The objects that a pattern names: folder after folder, or, behind ``**``, all that lies below.

    Raises:
        InputError: it names one that cannot be asked for. Others of that kind are left out.
    """
    match = _WILDCARD.search(item)
    assert match is not None
    prefix = item[: match.start()].rpartition("/")[0] + "/"
    pattern = _glob_pattern(item)
    odd = partial(_refuse_unnamed, pattern)
    if "**" in item:
        below = remote.list_under(prefix, options, odd=odd)
        yield from (info for info in below if pattern.fullmatch(info.uri))
        return
    folders = [prefix]
    *between, _ = item.removeprefix(prefix).split("/")
    for part in between:
        wanted = _glob_pattern(part)
        deeper = [below for folder in folders for below in remote.list_folder(folder, options)[1]]
        folders = [folder for folder in deeper if wanted.fullmatch(folder.rstrip("/").rpartition("/")[2])]
    for folder in folders:
        found, _ = remote.list_folder(folder, options, odd=odd)
        yield from (info for info in found if pattern.fullmatch(info.uri))


def _refuse_unnamed(pattern: re.Pattern[str], uri: str) -> None:
    """Refuse an object that cannot be asked for, where the user's pattern names it: its rows were missing.

    ``**`` goes through empty parts, too. What ends in a slash is a prefix, or stands for a folder.
    """
    if not uri.endswith("/") and pattern.fullmatch(re.sub("(?<!:)//+", "/", uri)):
        told = (
            "the pattern names an object that cannot be asked for: names have no empty part (//), '.', '..' "
            "or control sign; rename it, or name the others"
        )
        raise refused("unreadable_input", told, ascii(uri)[1:-1])
    tell_odd(uri)


_GLOB_PARTS = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _glob_pattern(pattern: str) -> re.Pattern[str]:
    """``*`` and ``?`` stop at a slash, ``**`` does not, ``[...]`` is a set of characters."""

    def translate(match: re.Match[str]) -> str:
        token = match.group()
        if len(token) > 1 and token.startswith("["):  # one that no ] follows stands for itself
            return token.replace("[!", "[^", 1).replace("\\", r"\\")
        return _GLOB_PARTS.get(token) or re.escape(token)

    try:
        return re.compile(re.sub(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|.", translate, pattern, flags=re.DOTALL))
    except re.error as error:
        told = f"the pattern cannot be read ({error.msg}); a set in [] goes from the lower sign to the higher"
        raise refused("missing_input", told, pattern) from None


def _content_digest(ref: FileRef, options: ObjectStoreOptions | None) -> str:
    with reading(ref.uri):
        if not is_remote(ref.uri):
            with local_path(ref.uri).open("rb", buffering=0) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        content = hashlib.sha256()
        for block in remote.stream(ref.uri, options):
            content.update(block)
        return content.hexdigest()
