"""Images, sounds and videos that rows hold or name, and where their files may lie.

A URL is the file itself (``data:``), or names one below the root that the job's user gave. Ingest writes the
whole place of such a file into the spool, and a shard task reads it (:mod:`dray.shard.media_rows`): nothing
that a row says makes an engine fetch anything.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dray.codes import InvalidRow, NotFound
from dray.errors import ConfigError
from dray.requests.validate import BadRow, check_text
from dray.storage.absolute_paths import absolute
from dray.storage.addresses import HUB
from dray.storage.files import local_path
from dray.storage.objects import is_object, is_web

NAMED: Final = re.compile(
    rb'"(?:(?:image|audio|video)_url":\{"url|file_url)":("(?!(?i:data):)(?:[^"\\]|\\.)*")'
)
"""What is found in each line of the spool that names a file, and in few others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """A sort of files that rows hold or name.

    ``name`` and ``example`` are for people. ``column`` is the option that names their column, and ``root``
    the one below which their files lie, of at most ``most_bytes``. Rows have the code ``invalid`` whose file
    is none, and ``missing`` where it is not there. ``data`` begins a URL that holds one.
    """

    name: str
    column: str
    root: str
    most_bytes: int
    invalid: InvalidRow
    missing: NotFound
    example: str
    data: str

    @property
    def one(self) -> str:
        """``an image``."""
        return f"a{'n' if self.name[0] in 'aeiou' else ''} {self.name}"

    def bad(self, message: str, field: str) -> BadRow:
        """The verdict on a row whose ``field`` holds none."""
        return BadRow(self.invalid, message, field)


IMAGES = Medium(
    name="image",
    column="image_column",
    root="image_root",
    most_bytes=32 << 20,  # a large photograph without loss
    invalid="invalid_image",
    missing="image_not_found",
    example="cats/1.jpg",
    data="data:image/png;base64,",
)
SOUNDS = Medium(
    name="sound",
    column="audio_column",
    root="audio_root",
    most_bytes=32 << 20,  # 17 minutes of a WAV file
    invalid="invalid_audio",
    missing="audio_not_found",
    example="calls/1.wav",
    data="data:audio/wav;base64,",
)
VIDEOS = Medium(
    name="video",
    column="video_column",
    root="video_root",
    most_bytes=64 << 20,  # two minutes of 1920 x 1080 pixels
    invalid="invalid_video",
    missing="video_not_found",
    example="clips/1.mp4",
    data="data:video/mp4;base64,",
)
MEDIA = (IMAGES, SOUNDS, VIDEOS)

Roots = Mapping[str, str]
"""Below these lie the files that rows name, by the option of their medium."""

Place = Callable[[str, str], str]
"""``(url, field)`` to the URL in the request; BadRow names ``field``."""

_DATA = re.compile(r"data:[\w.+/-]*(;[\w.+=-]+)*;base64,", re.ASCII | re.IGNORECASE)
_SIGNATURES = (
    (0, b"\x89PNG", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (0, b"BM", "image/bmp"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
)
_CONTROL = re.compile("[\x00-\x1f\x7f]")
# Means something else in an address on the web, or to servers of Java (..;) and of Windows (a backslash).
_OF_A_SERVER = re.compile(r"[%?#\\]|(?:^|/)\.\.?;")
_LONGEST_NAME = 1024  # bytes, in S3
_ODD = {"", ".", ".."}  # no parts of a name: one leads out of the root, object stores refuse the others


def data_url(content: bytes) -> str:
    """A file as a URL that holds it."""
    found = (name for at, start, name in _SIGNATURES if content.startswith(start, at))
    kind = next(found, "application/octet-stream")
    return f"data:{kind};base64,{b64encode(content).decode('ascii')}"


def is_data(url: str) -> bool:
    """Whether a URL holds its file itself."""
    return url[:5].lower() == "data:"


def is_base64(url: str) -> bool:
    """Whether a URL holds its file itself, in base64."""
    return _DATA.match(url, 0, 256) is not None


def columns_of_files(shape: Any) -> dict[Medium, str]:
    """The columns of files that a row shape names."""
    given = {medium: getattr(shape, medium.column) for medium in MEDIA}
    return {medium: column for medium, column in given.items() if column is not None}


def roots_of(shape: Any) -> Roots:
    """The roots that a row shape names."""
    given = {medium.root: getattr(shape, medium.root) for medium in MEDIA}
    return {name: root for name, root in given.items() if root is not None}


def placer(medium: Medium, root: str | None) -> Place:
    """What makes a whole place of the URL or name of a file, below ``root`` unless it is a data URL."""
    below = None if root is None else MediaRoot(medium, root)

    def place(url: str, field: str) -> str:
        if is_data(url):
            if not is_base64(url):
                raise medium.bad(f"the data URL holds no base64 ({medium.data}...)", field)
            return url
        check_text(url, field)
        if below is None:
            raise medium.bad(
                f"the {medium.name} is a name or a URL, and nothing says where {medium.name}s may lie: give "
                f"--{medium.root.replace('_', '-')}, a folder or a bucket's prefix, or put the {medium.name} "
                f"into the row ({medium.data}...)",
                field,
            )
        return below.place(url, field)

    return place


class MediaRoot:
    """A folder, or a prefix of an object store, below which the files of a job lie.

    Raises:
        ConfigError: the root is empty.
    """

    def __init__(self, medium: Medium, root: str) -> None:
        given = root.strip().rstrip("/")
        if not given and not root.strip():
            raise ConfigError(
                f"{medium.root} is empty: give a folder, or a bucket's prefix such as s3://bucket/"
                f"{medium.name}s"
            )
        if given.startswith(HUB):
            raise ConfigError(
                f"{medium.root} {given}: dray reads no {medium.name}s from a hub by their names; copy "
                f"them to a folder or a bucket, or take a dataset that has the {medium.name}s in a column"
            )
        self._medium = medium
        self._remote = is_object(root)
        self._web = is_web(root)
        self._root = given if self._remote else absolute(str(local_path(given or "/")), as_given=True)

    def place(self, url: str, field: str) -> str:
        """Where the file of this name or URL lies; BadRow where that is not below the root."""
        name = url.removeprefix("file://") if not self._remote else url
        whole = "://" in name if self._remote else name.startswith("/")
        begin = self._root.rstrip("/") + "/"
        medium = self._medium
        if whole and not name.startswith(begin):
            raise medium.bad(f"the {medium.name} is not below the job's {medium.root} ({self._root})", field)
        rest = name.removeprefix(begin) if whole else name
        if "://" in rest or not _ODD.isdisjoint(rest.split("/")) or self._is_odd(begin, rest):
            raise medium.bad(
                f"the {medium.name} is no name of a file below the job's {medium.root} ({self._root}), as "
                f"{medium.example} is",
                field,
            )
        return begin + rest

    def _is_odd(self, root: str, name: str) -> bool:
        """Whether no store takes such a name, or takes it for another."""
        if _CONTROL.search(name) or len(f"{root}{name}".encode()) > _LONGEST_NAME:
            return True
        return self._web and _OF_A_SERVER.search(name) is not None
