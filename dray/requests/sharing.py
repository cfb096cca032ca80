"""Rows that need no engine: repeats of another row of the job, and those that an earlier job has answered.

A repeat *follows* the first row that asks the same, its *leader*: it gets the leader's outcome. Both sorts
leave the spool, for files beside it. This runs over the spool as written, and only for jobs that ask for it.
Keys, pairs and rows go to temporary files beyond a million or so: memory stays bounded.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import IO, Literal, NamedTuple, Protocol, TypeVar

import orjson

from dray.errors import JobFailedError
from dray.requests.duplicates import DigestIndex, Pairs
from dray.requests.model import Outcome
from dray.requests.pulse import ReadingPulse
from dray.requests.row_ids import with_index
from dray.requests.sameness import Doubt, doubt_of, key_of
from dray.requests.spool.batching import batches
from dray.requests.spool.parts import SpoolParts
from dray.requests.spool.spool import decode, index_of
from dray.storage.files import open_lines, write_atomic
from dray.storage.objects import ObjectStoreOptions

Dedupe = bool | Literal["always"]
"""Whether repeated rows are computed once: those whose answers are known to be the same, or all of them."""

FOLLOWERS, REUSED = ".followers", ".reused"
"""What the names of the two files end in, after the spool's name."""

LINE_BYTES = 1 << 34
"""An answer may be far longer than a request."""

_OWN = 1 << 62  # numbers from here on are rows of this job, those below are answers of earlier ones
_BATCH_ROWS = 256
_BATCH_BYTES = 8 << 20

T = TypeVar("T")


class Answer(NamedTuple):
    """An answer of an earlier job, as the store has it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no reader needs
    response: bytes
    prompt_tokens: int
    completion_tokens: int


class Earlier(Protocol):
    """Answers of earlier jobs, each with a number below 2**62; of two with one key the lower is taken."""

    def keyed(self, pulse: ReadingPulse) -> Iterator[tuple[int, bytes]]:
        """All of them: number, and key of the request. ``pulse`` hears of rows that are read for them."""

    def answers(self, numbers: Sequence[int]) -> Mapping[int, Answer | None]:
        """Some of them by number: the first one at least, and so many more as fit into memory.

        None stands for one of a job that was deleted meanwhile.
        """


class Follower(NamedTuple):
    """A row that gets the outcome of another."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no reader needs
    leader: int
    custom_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """What a job shares: its own repeats, and the answers of ``earlier`` jobs.

    ``settled`` are the rows that have an answer of an earlier job already, ascending: of a spool that is
    written again, which must hold the same rows. ``model`` is the name in answers to rows that have none.
    """

    dedupe: Dedupe = False
    earlier: Earlier | None = None
    settled: Iterable[int] = ()
    model: str | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.dedupe) or self.earlier is not None or self.settled != ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """What left the spool, and where it lies: rows that follow another, and rows that have their answers.

    ``doubts`` counts rows that were left alone, by reason.
    """

    followers: int = 0
    reused: int = 0
    doubts: Mapping[Doubt, int] = field(default_factory=dict)
    followers_uri: str | None = None
    reused_uri: str | None = None

    def read_followers(self, batch: int, options: ObjectStoreOptions | None) -> Iterator[list[Follower]]:
        """The rows that follow another, in the order of the spool."""
        for page in _pages(self.followers_uri, batch, options):
            yield [Follower(*orjson.loads(line)) for line in page]

    def read_reused(self, batch: int, options: ObjectStoreOptions | None) -> Iterator[list[Outcome]]:
        """The outcomes of rows that an earlier job has answered, likewise."""
        for page in _pages(self.reused_uri, batch, options):
            yield [_reused_outcome(line) for line in page]

    def forget_answers(self, options: ObjectStoreOptions | None) -> None:
        """Once the store has the outcomes: leave only what later jobs read, the rows' indexes and keys."""
        if self.reused_uri is None:
            return
        # Where it fails, the file stays as it was: larger than need be.
        with (
            suppress(OSError, JobFailedError),
            write_atomic(self.reused_uri, hashed=False, options=options) as file,
        ):
            for page in _pages(self.reused_uri, _BATCH_ROWS, options):
                for line in page:
                    file.write(b"%b,%b,null]\n" % tuple(line.split(b",", 2)[:2]))


def share(
    spool: SpoolParts,
    sharing: Sharing | None,
    model: str | None,
    uri: str,
    *,
    options: ObjectStoreOptions | None,
    pulse: ReadingPulse,
) -> Shared:
    """Take out of the spool what needs no engine; its files lie at ``uri`` with an ending each.

    ``model`` is the name that rows have in common, where they name one.
    """
    if sharing is None or not sharing.wanted:
        return Shared()
    wanted = sharing if model is None else replace(sharing, model=model)
    with ExitStack() as stack:
        found, settled = (stack.enter_context(Pairs()) for _ in range(2))
        followers, reused = (stack.enter_context(_Log()) for _ in range(2))
        _settle(settled, wanted.settled)
        doubts = _find(spool, wanted, found, settled, pulse)
        if found.count or settled.count:
            _take_out(spool, wanted, found, settled, followers, reused, pulse)
        return Shared(
            followers=followers.count,
            reused=reused.count,
            doubts=doubts,
            followers_uri=followers.publish(f"{uri}{FOLLOWERS}", options),
            reused_uri=reused.publish(f"{uri}{REUSED}", options),
        )


def _settle(settled: Pairs, indexes: Iterable[int]) -> None:
    import numpy as np

    for some in _in_batches(indexes, 1 << 16):
        settled.add(np.array([(index, index) for index in some], np.uint64))


def _find(
    spool: SpoolParts, wanted: Sharing, found: Pairs, settled: Pairs, pulse: ReadingPulse
) -> Mapping[Doubt, int]:
    """Pairs of a row and what it takes its answer from; returns why rows were left alone."""
    doubts: Counter[Doubt] = Counter()
    with DigestIndex() as index:
        if wanted.earlier is not None:
            for number, key in wanted.earlier.keyed(pulse):
                pulse.row()
                index.add_digest(number, key)
        for line in _unsettled(spool.lines(), settled, pulse):
            request = decode(line)
            doubt = doubt_of(request.url, request.body)
            if doubt == "own_id" or (doubt is not None and wanted.dedupe != "always"):
                doubts[doubt] += 1
            else:
                index.add_digest(_OWN | request.index, key_of(request.url, request.body, wanted.model))
        for pairs in index.pairs():
            own = pairs[pairs[:, 0] >= _OWN]
            own = own if wanted.dedupe else own[own[:, 1] < _OWN]
            own[:, 0] -= _OWN
            found.add(own)
        pulse.end()
    return doubts


def _unsettled(lines: Iterable[bytes], settled: Pairs, pulse: ReadingPulse) -> Iterator[bytes]:
    for batch in batches(lines, rows=_BATCH_ROWS, size=_BATCH_BYTES):
        pulse.row()
        if not settled.count:
            yield from batch
            continue
        done = settled.partners([index_of(line) for line in batch])
        yield from (line for line, known in zip(batch, done, strict=True) if known is None)


def _take_out(
    spool: SpoolParts,
    wanted: Sharing,
    found: Pairs,
    settled: Pairs,
    followers: _Log,
    reused: _Log,
    pulse: ReadingPulse,
) -> None:
    """Rewrite the spool without the rows that follow another, have an earlier answer, or are settled."""
    with spool.thinning() as (lines, keep):
        for batch in batches(lines, rows=_BATCH_ROWS, size=_BATCH_BYTES):
            pulse.row()
            indexes = [index_of(line) for line in batch]
            sources, done = found.partners(indexes), settled.partners(indexes)
            asked = [source for source in sources if source is not None and source < _OWN]
            answers = _Answers(wanted.earlier, asked)
            for line, source, is_done in zip(batch, sources, done, strict=True):
                if is_done is not None:
                    keep(None)
                elif source is not None and source >= _OWN:
                    followers.add(_follower(line, source - _OWN))
                    keep(None)
                elif source is not None and (answer := answers.take(source)) is not None:
                    reused.add(_reused(line, answer, wanted.model))
                    keep(None)
                else:  # also where the job with the answer was deleted since
                    keep(line)
    pulse.end()


class _Answers:
    """Answers of earlier jobs, asked for one after the other: only a page of them is in memory."""

    def __init__(self, earlier: Earlier | None, numbers: Sequence[int]) -> None:
        self._earlier = earlier
        self._left = numbers
        self._page: Mapping[int, Answer | None] = {}

    def take(self, number: int) -> Answer | None:
        """The next one of ``numbers``; None where its job was deleted."""
        self._left = self._left[self._left.index(number) :]
        if self._earlier is not None and number not in self._page:
            self._page = {}  # not both at once
            self._page = self._earlier.answers(self._left)
        self._left = self._left[1:]
        return self._page.get(number)


def _follower(line: bytes, leader: int) -> bytes:
    request = decode(line)
    return orjson.dumps([request.index, leader, request.custom_id], option=orjson.OPT_APPEND_NEWLINE)


def _reused(line: bytes, answer: Answer, model: str | None) -> bytes:
    """The row's outcome, and the key by which a later job finds it."""
    request = decode(line)
    text = with_index(answer.response, answer.index, request.index).decode()
    key = key_of(request.url, request.body, model).hex()
    row = [request.index, key, request.custom_id, answer.prompt_tokens, answer.completion_tokens, text]
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _reused_outcome(line: bytes) -> Outcome:
    index, _, custom_id, prompt, completion, text = orjson.loads(line)
    return Outcome(
        index=index,
        custom_id=custom_id,
        response=text.encode(),
        prompt_tokens=prompt,
        completion_tokens=completion,
    )


def key_of_reused(line: bytes) -> tuple[int, bytes]:
    """Index and key on a line of the file of reused rows, without reading the rest of it."""
    index, key, _ = line.split(b",", 2)
    return int(index[1:]), bytes.fromhex(key[1:-1].decode())


class _Log:
    """Lines in a temporary file: there may be as many as rows."""

    def __init__(self) -> None:
        self.count = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="dray-shared-")  # noqa: SIM115  see __exit__

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def add(self, line: bytes) -> None:
        """Append one."""
        self._file.write(line)
        self.count += 1

    def publish(self, uri: str, options: ObjectStoreOptions | None) -> str | None:
        """Write them to ``uri``; None where there are none."""
        if not self.count:
            return None
        self._file.seek(0)
        with write_atomic(uri, hashed=False, options=options) as file:
            for line in self._file:
                file.write(line)
        return uri


def _pages(uri: str | None, batch: int, options: ObjectStoreOptions | None) -> Iterator[list[bytes]]:
    if uri is None:
        return
    lines = (line for _, line in open_lines(uri, limit=LINE_BYTES, options=options) if line is not None)
    yield from batches(lines, rows=batch, size=_BATCH_BYTES)


def _in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch
