"""Outcomes into the files that the user keeps: JSON lines in the OpenAI batch format, or Parquet.

The bytes depend on the rows alone: not on how they were paged, nor on when they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from dray.requests.lines import Page, answer_line, error_line, page_of
from dray.storage.draft import Draft, Stage
from dray.storage.drafts import Drafts
from dray.storage.files import FileInfo
from dray.storage.objects import ObjectStoreOptions

OutputFormat = Literal["jsonl", "parquet"]
PageT = TypeVar("PageT", bound=Page)


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """The files written, by name (``output.jsonl``, ``errors.jsonl``...), and rows of each sort."""

    files: dict[str, FileInfo]

    @property
    def output(self) -> FileInfo:
        """The file of the answers."""
        return next(info for name, info in self.files.items() if name.startswith("output."))

    @property
    def errors(self) -> FileInfo:
        """The file of the error rows; it is there even when empty."""
        return next(info for name, info in self.files.items() if name.startswith("errors."))


class Writer(Protocol):
    """One output format: takes pages of outcomes, in index order."""

    def add(self, page: Page) -> None:
        """Take the next page."""

    def close(self) -> None:
        """Write what is left; the files stay open."""


def write_outputs(
    pages: Iterable[PageT],
    *,
    directory: str,
    format: OutputFormat = "jsonl",  # noqa: A002  the user's word for it
    observe: Callable[[PageT], None] | None = None,
    stage: Stage | None = None,
    confirm: Callable[[Mapping[str, FileInfo]], None] = lambda _infos: None,
    options: ObjectStoreOptions | None = None,
) -> Written:
    """Write answers and error rows of a job into ``directory``, each file whole or not at all.

    ``confirm`` is called when all is written and no file has its name: what it raises leaves things as they
    were. Arguments and errors else as :func:`fill` and :class:`dray.storage.drafts.Drafts` have them.
    """
    with Drafts(directory, stage=stage, options=options) as drafts:
        written = fill(drafts, pages, format=format, observe=observe)
        drafts.publish(confirm)
    return written


def fill(
    drafts: Drafts,
    pages: Iterable[PageT],
    *,
    format: OutputFormat = "jsonl",  # noqa: A002  the user's word for it
    observe: Callable[[PageT], None] | None = None,
) -> Written:
    """Write answers and error rows into drafts of both files, which are safe then and have no names yet.

    ``pages`` hold outcomes in index order. ``observe`` sees each page as it passes. Raises JobFailedError
    where the place takes no more.
    """
    output, errors = (drafts.open(f"{name}.{format}") for name in ("output", "errors"))
    writer = _writer(format, output, errors)
    for page in pages:
        writer.add(page)
        if observe is not None:
            observe(page)
    writer.close()
    return Written(files=drafts.settle())


def _writer(format: OutputFormat, output: Draft, errors: Draft) -> Writer:  # noqa: A002
    if format == "jsonl":
        return JsonlWriter(output, errors)
    from dray.requests.output_parquet import ParquetWriter

    return ParquetWriter(output, errors)


class JsonlWriter:
    """The OpenAI batch output format; responses are spliced in as they are."""

    def __init__(self, output: Draft, errors: Draft) -> None:
        self._output = output
        self._errors = errors

    def add(self, page: Page) -> None:
        """Take the next page."""
        answers = [
            answer_line(row.index, row.custom_id, row.response) for row in page if row.response is not None
        ]
        if answers:
            self._output.write(page_of(answers))
            self._output.rows += len(answers)
        if len(answers) < len(page):
            failed = [
                error_line(row.index, row.custom_id, row.error_code, row.error_message)
                for row in page
                if row.error_code is not None
            ]
            self._errors.write(page_of(failed))
            self._errors.rows += len(failed)

    def close(self) -> None:
        """Nothing is held back."""
