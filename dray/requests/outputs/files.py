"""Outcomes into the files that the user keeps: JSON lines in the OpenAI batch format, or Parquet.

The bytes depend on the rows alone: not on how they were paged, nor on when they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar

from dray.requests.outputs.kept import Kept, KeptRow
from dray.requests.outputs.lines import Page, answer_line, error_line, page_of, with_row
from dray.requests.outputs.series import OutgrownError, Series
from dray.storage.draft import Stage
from dray.storage.drafts import Drafts
from dray.storage.files import FileInfo, join
from dray.storage.layout import PART_BYTES, family_of, is_part, manifest_name, pattern_name
from dray.storage.objects import ObjectStoreOptions

OutputFormat = Literal["jsonl", "parquet"]
PageT = TypeVar("PageT", bound=Page)


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """The files written, by name (``output.jsonl``, ``errors.jsonl``...), and rows of each sort."""

    files: dict[str, FileInfo]

    @property
    def output(self) -> FileInfo:
        """The answers, as :meth:`whole` has them."""
        return self.whole("output")

    @property
    def errors(self) -> FileInfo:
        """The error rows, as :meth:`whole` has them; their file is there even when empty."""
        return self.whole("errors")

    def parts(self, stem: str) -> list[FileInfo]:
        """The parts of ``output`` or ``errors``, in order; none where it is one file."""
        return [info for name, info in sorted(self.files.items()) if is_part(name) and _is_of(name, stem)]

    def whole(self, stem: str) -> FileInfo:
        """The one file of ``output`` or ``errors``. Of several: their pattern, their sums, and the manifest's
        SHA-256.
        """
        name, info = next(one for one in sorted(self.files.items(), reverse=True) if _is_of(one[0], stem))
        parts = self.parts(stem)
        if not parts:
            return info
        form = name.split(".")[1]
        uri = join(info.uri.removesuffix(name), pattern_name(stem, form))
        size, rows = sum(part.size for part in parts), sum(part.rows for part in parts)
        return replace(self.files[manifest_name(stem, form)], uri=uri, size=size, rows=rows)


def _is_of(name: str, stem: str) -> bool:
    family = family_of(name)
    return family is not None and family[0] == stem


class Pages(Generic[PageT]):
    """Pages of outcomes that can be read again from the first one: ``read`` begins anew."""

    def __init__(self, read: Callable[[], Iterator[PageT]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[PageT]:
        return self._read()


class Writer(Protocol):
    """One output format: takes pages of outcomes, in index order."""

    def add(self, page: Page, kept: Sequence[KeptRow] | None) -> None:
        """Take the next page, or a piece of it, with the kept columns of each row where the job has such."""

    def close(self) -> None:
        """Write what is left; the files stay open."""


def write_outputs(
    pages: Iterable[Page],
    *,
    directory: str,
    format: OutputFormat = "jsonl",  # noqa: A002  the user's word for it
    kept: Kept | None = None,
    part_bytes: int = PART_BYTES,
    stage: Stage | None = None,
    confirm: Callable[[Mapping[str, FileInfo]], None] = lambda _infos: None,
    replace_all: bool = False,
    options: ObjectStoreOptions | None = None,
) -> Written:
    """Write answers and error rows of a job into ``directory``, each file whole or not at all.

    ``confirm`` is called when all is written and no file has its name: what it raises leaves things as they
    were. ``replace_all`` removes what is there in other formats. Arguments and errors else as :func:`fill`
    and :class:`dray.storage.drafts.Drafts` have them.
    """
    with Drafts(directory, stage=stage, options=options) as drafts:
        if replace_all:
            drafts.replace_all()
        written = fill(drafts, pages, format=format, kept=kept, part_bytes=part_bytes)
        drafts.publish(confirm)
    return written


def fill(
    drafts: Drafts,
    pages: Iterable[Page],
    *,
    format: OutputFormat = "jsonl",  # noqa: A002  the user's word for it
    kept: Kept | None = None,
    part_bytes: int = PART_BYTES,
) -> Written:
    """Write answers and error rows into drafts of their files, which are safe then and have no names yet.

    What fits into ``part_bytes`` is one file, the rest is numbered parts of that size at most, with a
    manifest. ``pages`` hold outcomes in index order. An upload to S3 has its name from its first byte: where
    one file turns out to be several, the pages are read once more. ``kept`` columns stand beside each row.

    Raises:
        JobFailedError: the place takes no more, or the kept columns are gone.
    """
    numbered: set[str] = set()
    while True:
        series = [
            Series(drafts, stem, format, most=part_bytes, numbered=stem in numbered)
            for stem in ("output", "errors")
        ]
        try:
            _write(_writer(format, kept, *series), pages, kept)
        except OutgrownError as outgrown:
            if iter(pages) is pages:
                raise TypeError("pages that are written to S3 in parts must be readable twice") from outgrown
            numbered.add(outgrown.stem)
            drafts.discard()
        else:
            return Written(files=drafts.settle())


def _write(writer: Writer, pages: Iterable[Page], kept: Kept | None) -> None:
    if kept is None:
        for page in pages:
            writer.add(page, None)
    else:
        beside = kept.beside()
        for page in pages:
            for piece, rows in beside(page):
                writer.add(piece, rows)
    writer.close()


def _writer(format: OutputFormat, kept: Kept | None, output: Series, errors: Series) -> Writer:  # noqa: A002
    columns = () if kept is None else kept.columns
    if format == "jsonl":
        return JsonlWriter(output, errors, [column.name for column in columns])
    from dray.requests.outputs.parquet import ParquetWriter

    return ParquetWriter(output, errors, columns)


class JsonlWriter:
    """The OpenAI batch output format; responses are spliced in as they are.

    Kept columns stand at the end of each line, in an object ``row``.
    """

    def __init__(self, output: Series, errors: Series, columns: Sequence[str]) -> None:
        self._output = output
        self._errors = errors
        self._columns = columns

    def add(self, page: Page, kept: Sequence[KeptRow] | None = None) -> None:
        """Take the next page."""
        answers: list[tuple[int, bytes]] = []
        failed: list[tuple[int, bytes]] = []
        for place, row in enumerate(page):
            if row.response is not None:
                line, lines = answer_line(row.index, row.custom_id, row.response), answers
            elif row.error_code is not None:
                line = error_line(row.index, row.custom_id, row.error_code, row.error_message)
                lines = failed
            else:
                continue
            if kept is not None:
                line = with_row(line, self._columns, kept[place].values)
            lines.append((row.index, line))
        _add_lines(self._output, answers)
        _add_lines(self._errors, failed)

    def close(self) -> None:
        """Write the manifests of what came to several files."""
        self._output.close()
        self._errors.close()


def _add_lines(series: Series, lines: list[tuple[int, bytes]]) -> None:
    """Whole lines: all at once where they fit into the part, else by halves."""
    if not lines:
        return
    piece = page_of([line for _, line in lines])
    if series.fits(len(piece)) or len(lines) == 1:
        series.add(piece, rows=len(lines), first=lines[0][0], last=lines[-1][0])
        return
    half = len(lines) // 2
    _add_lines(series, lines[:half])
    _add_lines(series, lines[half:])
