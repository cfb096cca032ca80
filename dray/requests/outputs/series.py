"""One sort of rows on its way into its file, or into numbered parts where one file would be too large."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from dray.errors import JobFailedError
from dray.storage.draft import Draft
from dray.storage.drafts import Drafts
from dray.storage.layout import MOST_PARTS, manifest_name, part_name, whole_name


class OutgrownError(Exception):
    """The one file of a sort of rows is to become the first of several, and its name is fixed."""

    def __init__(self, stem: str) -> None:
        super().__init__(stem)
        self.stem = stem


@dataclass(slots=True)
class _Part:
    """A file, and the indexes of its first and last row."""

    name: str
    draft: Draft = field(repr=False)
    first: int | None = None
    last: int | None = None


class Series:
    """Drafts that follow one another, each of ``most`` bytes at most as long as a piece is not larger.

    ``numbered`` says that there will be several. Else the first one has the name of a single file, until a
    second one is needed: so the names depend on the rows alone.
    """

    def __init__(self, drafts: Drafts, stem: str, form: str, *, most: int, numbered: bool) -> None:
        self._drafts = drafts
        self.most = most
        self._stem = stem
        self._form = form
        self._numbered = numbered
        self._entries: list[dict[str, Any]] = []
        self._part = self._open()

    @property
    def draft(self) -> Draft:
        """The draft of the present part."""
        return self._part.draft

    def fits(self, size: int) -> bool:
        """Whether the present part takes so many bytes more."""
        return self.draft.size + size <= self.most

    def add(self, piece: bytes, *, rows: int, first: int, last: int) -> None:
        """Append rows of the indexes from ``first`` to ``last``: to a new part where this one is full."""
        if self.draft.rows and not self.fits(len(piece)):
            self.next()
        self.draft.write(piece)
        self.note(rows=rows, first=first, last=last)

    def note(self, *, rows: int, first: int, last: int) -> None:
        """Rows of these indexes were written to the draft of the present part."""
        part = self._part
        part.draft.rows += rows
        part.first = first if part.first is None else part.first
        part.last = last

    def next(self) -> Draft:
        """End the present part, and begin the next.

        Raises:
            OutgrownError: its name is fixed, and is that of a single file.
        """
        if not self._numbered:
            name = part_name(self._stem, 0, self._form)
            if not self._drafts.rename(self._part.name, name):
                raise OutgrownError(self._stem)
            self._part.name, self._numbered = name, True
        self._end_part()
        self._part = self._open()
        return self.draft

    def close(self) -> None:
        """Write the manifest, if there are several."""
        if not self._numbered:
            return
        self._end_part()
        sums = {name: sum(entry[name] for entry in self._entries) for name in ("rows", "bytes")}
        listed = {"format": self._form, **sums, "parts": self._entries}
        manifest = self._drafts.open(manifest_name(self._stem, self._form))
        manifest.write(orjson.dumps(listed, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    def _open(self) -> _Part:
        number = len(self._entries)
        if number >= MOST_PARTS:
            raise JobFailedError(
                f"{self._stem}: more than {MOST_PARTS:,} files of {self.most:,} bytes; "
                "give a larger --part-bytes"
            )
        if self._numbered:
            name = part_name(self._stem, number, self._form)
        else:
            name = whole_name(self._stem, self._form)
        return _Part(name, self._drafts.open(name, most=self.most))

    def _end_part(self) -> None:
        part = self._part
        info = self._drafts.finish(part.name)
        self._entries.append(
            {
                "name": part.name,
                "rows": info.rows,
                "bytes": info.size,
                "sha256": info.sha256,
                "first_index": part.first,
                "last_index": part.last,
            }
        )
