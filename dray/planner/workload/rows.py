"""A job's rows as lines of a spool, from its input, read as ``dray run`` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dray.errors import InputError, Problem
from dray.kinds import LENGTH_FIELDS
from dray.requests.duplicates import IdIndex
from dray.requests.ingest import QUERY_NAME
from dray.requests.reading.inputs import FileRef
from dray.requests.reading.readers import ReadLimits, files_of, read_rows
from dray.requests.reading.reordering import reordered
from dray.requests.reading.settling import settled
from dray.requests.rejects import Reject
from dray.requests.rules import JobRules
from dray.requests.sources import RowDefaults, Source
from dray.requests.spool.spool import encode_line
from dray.storage.objects import ObjectStoreOptions


class InputLines:
    """The valid requests of an input, each as a line of a spool. May be iterated again: reads it again.

    ``rows`` counts all rows of the last pass, ``invalid`` those that are no requests, and ``repeated`` those
    with the custom_id of an earlier row; ``first_invalid`` says what is wrong with the first of the former,
    and ``first_repeated`` is the number of the first of the latter. A run refuses the input for both, or with
    ``skip_invalid`` makes error rows of them. ``overrides`` are fields of every request, whatever it says
    itself.

    Raises:
        ConfigError, InputError: nothing says what becomes the prompt, or an input is missing; when iterated,
            also where a file cannot be read, or rows need engines of different kinds.
    """

    def __init__(
        self,
        source: Source,
        defaults: RowDefaults | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
        options: ObjectStoreOptions | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        source, found = settled(source, options=options)
        self.files: list[FileRef] = files_of(source, options=options)
        self.source, moved = reordered(source, self.files, options=options)
        for told in (found, moved):
            if told is not None and say is not None:
                say(told)
        self.rows = self.invalid = self.repeated = self.first_repeated = 0
        self.first_invalid: Problem | None = None
        self._defaults = defaults or RowDefaults()
        self._overrides = dict(overrides or {})
        self._options = options

    def __iter__(self) -> Iterator[bytes]:
        self.rows = self.invalid = self.repeated = self.first_repeated = 0
        self.first_invalid = None
        with IdIndex() as ids:
            yield from self._lines(ids)
            repeats = ids.repeats()
        self.repeated = len(repeats)
        self.first_repeated = int(repeats[0, 0]) + 1 if self.repeated else 0

    def _lines(self, ids: IdIndex) -> Iterator[bytes]:
        names = [file.uri for file in self.files] or [QUERY_NAME]
        rules = JobRules(names, self._defaults.model_name)
        for row in read_rows(self.source, self.files, self._defaults, ReadLimits(), self._options):
            index, self.rows = self.rows, self.rows + 1
            line = None
            named = row.envelope or row.bad
            if named is not None and named.custom_id is not None:
                ids.add(index, named.custom_id)
            if row.envelope is not None:
                self._override(row.envelope.body)
                try:
                    line = encode_line(index, *row.envelope, row.file_no, row.line_no)
                except TypeError:  # nested more deeply than can be written: a bad row to ingest
                    line = None
            if line is None or row.envelope is None:
                self.invalid += 1
                if row.bad is not None and self.first_invalid is None:
                    bad = Reject.of(row.bad, index=index, file_no=row.file_no, line_no=row.line_no)
                    self.first_invalid = bad.problem(names)
                continue
            rules.check(index, row.file_no, row.line_no, row.envelope.url, row.envelope.body)
            yield line.rstrip(b"\n")
        mixed = rules.broken.get("mixed_kinds")  # models may differ: a plan knows of no adapters
        if mixed is not None:
            raise InputError([mixed.problem(names)])

    def _override(self, body: dict[str, Any]) -> None:
        if self._overrides.keys() & LENGTH_FIELDS:
            for name in body.keys() & LENGTH_FIELDS:
                del body[name]  # the other spelling would win
        body.update(self._overrides)
