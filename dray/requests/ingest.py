"""Read the input once: validate, count, and write the spool that everything later reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice

from dray.errors import InputError, Problem
from dray.kinds import Kind
from dray.requests.asked import RowsDigest
from dray.requests.duplicates import IdIndex
from dray.requests.model import Outcome
from dray.requests.outputs.kept import KEPT, Kept, KeptLog
from dray.requests.pulse import ReadingPulse
from dray.requests.reading.dataset_hints import told_of_commits
from dray.requests.reading.inputs import FileRef
from dray.requests.reading.readers import RawRow, ReadLimits, files_of, read_rows
from dray.requests.reading.reordering import reordered
from dray.requests.reading.settling import settled
from dray.requests.rejects import SKIP_ADVICE, Reject, RejectLog, empty_input, read_rejects
from dray.requests.repeats import Repeats, drop_repeats, merged_rejects
from dray.requests.rules import JobRules
from dray.requests.sharing import FOLLOWERS, REUSED, Follower, Shared, Sharing, share
from dray.requests.sources import RowDefaults, Source
from dray.requests.spool.arranging import Arrange, Arranging
from dray.requests.spool.marks import Mark, SpoolPart, SpoolRange, Taper, cut_marks, enough_ranges
from dray.requests.spool.parts import SpoolParts
from dray.requests.spool.spool import encode_line
from dray.requests.validate import BadRow
from dray.storage.files import write_atomic
from dray.storage.objects import ObjectStoreOptions

QUERY_NAME = "query"
"""What stands for the file's name where the rows come from a query."""

REJECTS = ".rejects"
BESIDE = (REJECTS, FOLLOWERS, REUSED, KEPT)
"""What the names of files beside a spool end in, after the spool's name."""

_PROGRESS_ROWS = 1024
_NOTHING_SHARED = Shared()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingested:
    """What the input holds, and where it lies now.

    ``rows`` counts every row, ``requests`` those to be asked; the others are rejects, or ``shared``. Indices
    run from 0 to ``rows - 1`` over all. ``parts`` are the files of the spool, of ``part_bytes`` at most each;
    ``marks`` are the places where it may be cut, between groups where it is ``grouped``. ``spool_sha256`` is
    in hex: of several parts, that of their digests. ``asked`` is the digest of what the rows of a query ask,
    ``kept`` the columns that stand beside the answers.
    """

    rows: int
    requests: int
    parts: tuple[SpoolPart, ...]
    part_bytes: int | None
    spool_sha256: str
    rejects_uri: str | None
    marks: Sequence[Mark] = field(repr=False)
    grouped: bool = False
    model_name: str | None
    kinds: frozenset[Kind]
    files: tuple[str, ...]
    shared: Shared = _NOTHING_SHARED
    asked: str | None = None
    kept: Kept | None = None
    options: ObjectStoreOptions | None = field(default=None, repr=False)

    def rejects(self, batch: int = 1000) -> Iterator[list[Outcome]]:
        """The error rows of what ``skip_invalid`` skipped, ``batch`` at a time, in input order."""
        return read_rejects(self.rejects_uri, self.files, batch=batch, options=self.options)

    def followers(self, batch: int = 1000) -> Iterator[list[Follower]]:
        """The rows that get the outcome of another, ``batch`` at a time, in the order of the spool."""
        return self.shared.read_followers(batch, self.options)

    def reused(self, batch: int = 250) -> Iterator[list[Outcome]]:
        """The rows that an earlier job has answered, likewise; fewer, where their answers are large."""
        return self.shared.read_reused(batch, self.options)


def ingest(
    source: Source,
    *,
    spool_uri: str,
    defaults: RowDefaults | None = None,
    skip_invalid: bool = False,
    limits: ReadLimits | None = None,
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] | None = None,
    options: ObjectStoreOptions | None = None,
    pulse: ReadingPulse | None = None,
    part_bytes: int | None = None,
    arrange: Arrange | None = None,
    sharing: Sharing | None = None,
) -> Ingested:
    """Stream the input into a spool at ``spool_uri``; ``progress`` gets the count of rows so far.

    The spool is one file, or parts of ``part_bytes`` at most. ``say`` gets what people are to hear of it.
    ``arrange`` gives rows another order (:mod:`.spool.arranging`), ``sharing`` drops rows that need no
    engine. ``pulse`` tells a thread that rows come, and passes on its request to stop (CancelledError).

    Raises InputError with the first problems in input order, and publishes nothing then. ``skip_invalid``
    makes error rows (``rejects``) of rows that cannot be requests. A job-wide contradiction (two models,
    embeddings among generation), or an input without a valid row, is refused all the same.
    """
    limits, defaults, pulse = limits or ReadLimits(), defaults or RowDefaults(), pulse or ReadingPulse()
    source, files = _found_out(source, limits, options, pulse, say)
    names = tuple(ref.uri for ref in files) or (QUERY_NAME,)
    with ExitStack() as stack:
        ids = stack.enter_context(IdIndex())
        rejects, dropped = (stack.enter_context(RejectLog()) for _ in range(2))
        kept = stack.enter_context(KeptLog(source.shape.keep_columns, names[0], spool_uri + KEPT, options))
        spool = stack.enter_context(SpoolParts(spool_uri, part_bytes, options=options, pulse=pulse))
        arranging = stack.enter_context(Arranging(spool, spool_uri, arrange, pulse, say))
        rules = JobRules(names, defaults.model_name, defaults.adapters)
        stop_after = None if skip_invalid else limits.problems
        reading = _Reading(ids, rejects, arranging, kept, rules, stop_after, on_row=pulse.row)
        digest = RowsDigest(source)
        reading.consume(digest.over(read_rows(source, files, defaults, limits, options, pulse)), progress)
        pulse.end()
        repeats = reading.settled(spool, dropped, names, limits.problems)
        _say_late(source, say)
        shared = share(spool, sharing, rules.model_name, spool_uri, options=options, pulse=pulse)
        return Ingested(
            rows=reading.rows,
            requests=spool.writer.rows,
            parts=spool.finish(),
            part_bytes=part_bytes,
            spool_sha256=spool.sha256,
            rejects_uri=_publish_rejects(f"{spool_uri}{REJECTS}", repeats, rejects, dropped, options),
            marks=spool.writer.marks,
            grouped=spool.grouped,
            model_name=rules.model_name,
            kinds=rules.kinds,
            files=names,
            shared=shared,
            asked=digest.found,
            kept=kept.found(),
            options=options,
        )


def asked_by(
    source: Source,
    *,
    defaults: RowDefaults,
    limits: ReadLimits,
    options: ObjectStoreOptions | None,
    pulse: ReadingPulse,
) -> str | None:
    """The digest that :func:`ingest` would note of what the rows ask by now. Nothing is written."""
    source, files = _found_out(source, limits, options, pulse, None)
    digest = RowsDigest(source)
    for _ in digest.over(read_rows(source, files, defaults, limits, options, pulse)):
        pulse.row()
    pulse.end()
    return digest.found


def _found_out(
    source: Source,
    limits: ReadLimits,
    options: ObjectStoreOptions | None,
    pulse: ReadingPulse,
    say: Callable[[str], None] | None,
) -> tuple[Source, list[FileRef]]:
    """The source with what its rows tell, which ``say`` gets in words, and its files."""
    source, found = settled(source, options=options)
    files = files_of(source, options=options)
    source, moved = reordered(source, files, line_bytes=limits.line_bytes, options=options, pulse=pulse)
    for told in (told_of_commits(ref.uri for ref in files), found, moved):
        if told is not None and say is not None:
            say(told)
    return source, files


def _say_late(source: Source, say: Callable[[str], None] | None) -> None:
    """Name the fields that went into requests, and that the first rows had not."""
    fields = source.shape.fields
    if fields is not None and fields.late and say is not None:
        say(f"later rows also had {', '.join(sorted(fields.late))}, which went into their requests")


def cut(
    ingested: Ingested,
    *,
    target_rows: int,
    max_shards: int = 16_384,
    min_shards: int = 1,
    taper: Taper | None = None,
) -> list[SpoolRange]:
    """Contiguous ranges that cover the spool exactly once, of about ``target_rows`` requests at most.

    Between ``min_shards`` and ``max_shards`` of them, as far as there are rows; each part of the spool may
    bring one more. The last ones ``taper``, where that is asked for.
    """
    taper = taper or Taper(ranges=0)
    wanted = enough_ranges(ingested.requests, max(1, target_rows), min_shards, taper)
    return cut_marks(
        ingested.marks,
        parts=ingested.parts,
        rows=ingested.requests,
        ranges=min(wanted, max_shards),
        grouped=ingested.grouped,
        taper=taper,
    )


class _Reading:
    """The one pass over the input."""

    def __init__(
        self,
        ids: IdIndex,
        rejects: RejectLog,
        arranging: Arranging,
        kept: KeptLog,
        rules: JobRules,
        stop_after: int | None,
        *,
        on_row: Callable[[], None],
    ) -> None:
        self.rows = 0
        self._ids = ids
        self._rejects = rejects
        self._arranging = arranging
        self._kept = kept
        self._rules = rules
        self._stop_after = stop_after
        self._on_row = on_row
        self._unreadable: InputError | None = None

    def consume(self, rows: Iterable[RawRow], progress: Callable[[int], None] | None) -> None:
        """Every row into the spool or among the rejects; stops where enough is wrong."""
        try:
            for _ in self._steps(rows):
                if progress is not None:
                    progress(self.rows)
        except InputError as error:  # a file that cannot be read ends the pass; what came before counts too
            self._unreadable = error
        if progress is not None:
            progress(self.rows)

    def _steps(self, rows: Iterable[RawRow]) -> Iterator[None]:
        add_id, add_line, check = self._ids.add, self._arranging.add_line, self._rules.check
        on_row = self._on_row
        for index, (file_no, line_no, envelope, found, kept) in enumerate(rows):
            on_row()
            if kept:
                self._kept.add(index, kept)
            bad = found
            if envelope is not None:
                custom_id, url, body = envelope
                try:
                    line = encode_line(index, custom_id, url, body, file_no, line_no)
                except TypeError:  # orjson reads 1,024 levels of nesting and writes 254
                    bad = BadRow(
                        "invalid_value", "body is nested too deeply: over 250 levels", "body", custom_id
                    )
                else:
                    add_id(index, custom_id)
                    check(index, file_no, line_no, url, body)
                    add_line(line)
            if bad is not None:
                if bad.custom_id is not None:
                    add_id(index, bad.custom_id)
                self._rejects.add(Reject.of(bad, index=index, file_no=file_no, line_no=line_no))
            self.rows = index + 1
            if index % _PROGRESS_ROWS == 0:
                yield
            if self._rejects.count == self._stop_after:
                return

    def settled(self, spool: SpoolParts, dropped: RejectLog, names: Sequence[str], shown: int) -> Repeats:
        """The rows that repeat an id, which the spool loses; raises InputError as ``ingest`` does."""
        self._arranging.flush()
        repeats = Repeats(self._ids.repeats(), spool, self._rejects)
        self._refuse(repeats, names, shown)
        if len(repeats):
            drop_repeats(repeats, spool, dropped, names)
        if not spool.writer.rows:
            raise _no_request(names, self.rows, merged_rejects(repeats, self._rejects, dropped), shown)
        self._kept.check()
        return repeats

    def _refuse(self, repeats: Repeats, names: Sequence[str], shown: int) -> None:
        """Raise InputError where anything stands in the way of the job."""
        bad_rows: Iterable[Reject] = self._rules.broken.values()
        total = len(self._rules.broken)
        advice = SKIP_ADVICE if total == 0 and self._unreadable is None else None
        if self._stop_after is not None:
            bad_rows = chain(bad_rows, self._rejects, islice(repeats.rejects(names), shown))
            total += self._rejects.count + len(repeats)
        ordered = sorted(bad_rows, key=lambda reject: (reject.file_no, reject.line_no))
        problems = [reject.problem(names) for reject in ordered]
        if self._unreadable is not None:
            problems += self._unreadable.problems
            total += self._unreadable.total
        if not self.rows and not problems:
            raise empty_input(names[0])
        if problems:
            raise InputError(problems[:shown], total=total, advice=advice)


def _no_request(names: Sequence[str], rows: int, bad_rows: Iterator[Reject], shown: int) -> InputError:
    """The error of an input of which ``skip_invalid`` leaves nothing: there is no job to complete."""
    told = f"no row of {rows:,} is a valid request" if rows > 1 else "the one row is no valid request"
    first = Problem("no_valid_row", f"{told}, so there is nothing to run", names[0])
    problems = [first, *(reject.problem(names) for reject in islice(bad_rows, shown - 1))]
    return InputError(problems, total=rows + 1)


def _publish_rejects(
    uri: str, repeats: Repeats, rejects: RejectLog, dropped: RejectLog, options: ObjectStoreOptions | None
) -> str | None:
    if not rejects.count and not dropped.count:
        return None
    with write_atomic(uri, hashed=False, options=options) as file:
        for reject in merged_rejects(repeats, rejects, dropped):
            file.write(reject.encode())
    return uri
