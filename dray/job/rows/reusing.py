"""Answers of earlier jobs: which jobs have any that this one may take, and what their requests were.

An answer may be taken if model, engine, its version, the arguments and the policies that change answers, the
chat template and the name of the model are the same, and the request is; so is the day that prompts have as
today, where they may hold it. Requests are read from the spools of these jobs, which stay after a job's end;
so a job needs no option for another one to take its answers.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dray.engine.chat_template import ARGUMENT, template_text
from dray.engine.prompt_day import VARIABLE
from dray.errors import DrayError
from dray.job.beginning.engine_versions import version_here, versions_of
from dray.job.beginning.prompt_day import DAY, may_hold_day
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows.spooling import REUSED_AT
from dray.kinds import kind_named
from dray.requests.media.medium import NAMED
from dray.requests.pulse import ReadingPulse
from dray.requests.sameness import key_of
from dray.requests.sharing import LINE_BYTES, REUSED, Answer, key_of_reused
from dray.requests.spool.spool import decode, index_of, read_shard
from dray.storage.files import exists, open_lines
from dray.storage.objects import ObjectStoreOptions
from dray.store import Job, Shard, ShardState, Store
from dray.wording import plural

TEMPLATE = "chat_template"
"""Where a job's ``info`` has the digest of the chat template that its engine arguments name."""

_MOST_JOBS = 1000
_INDEX_BITS = 40  # of a number, behind that of the job
_ASKED_ROWS = 1024
_PAGE_BYTES = 32 << 20  # of answers, beyond which no further job is asked for more
_PART = re.compile(r"-\d{5,}(?=\.jsonl$)")


def template_digest_of(settings: JobSettings) -> str | None:
    """The digest of a chat template that the engine arguments give, as text or as a file; None for none."""
    given = settings.engine_arguments.get(ARGUMENT)
    return None if given is None else hashlib.sha256(template_text(given).encode()).hexdigest()


def served_name(engine: str, model: str, given: str | None) -> str:
    """The name in answers to rows that name no model."""
    return given or (model if engine == "simulated" else Path(model).name)


@dataclass(frozen=True, slots=True)
class _Source:
    """An earlier job, and its number among them."""

    number: int
    job: Job


class EarlierAnswers:
    """The answers of the store's other jobs that a job may take. ``notes`` says why others are left out."""

    def __init__(self, store: Store, job: OpenJob, recorded: Job, say: Callable[[str], None] | None) -> None:
        self.notes: list[str] = []
        self._store = store
        self._options = job.settings.objects
        self._say = say
        self._left: Counter[str] = Counter()
        self._holds_day = cache(lambda: may_hold_day(job))
        found = [other for other in store.list_jobs(_MOST_JOBS) if other.job_id != job.job_id]
        self._sources = [
            _Source(number, other)
            for number, other in enumerate(one for one in found if self._is_like(one, job.settings, recorded))
        ]
        if not found:
            self.notes.append("the store has no other job")
        for why, jobs in self._left.items():
            self.notes.append(f"{plural(jobs, 'other job')} left out: {why}")

    def keyed(self, pulse: ReadingPulse) -> Iterator[tuple[int, bytes]]:
        """The answers' numbers, and the keys of their requests. Spools that cannot be read are noted."""
        if self._sources and self._say is not None:
            rows = sum(source.job.total or 0 for source in self._sources)
            jobs = plural(len(self._sources), "earlier job")
            self._say(f"reading the requests of {jobs} ({plural(rows, 'row')}) for --reuse")
        for source in self._sources:
            try:
                yield from self._keys_of(source, pulse)
            except (DrayError, OSError) as error:
                self.notes.append(
                    f"job {source.job.job_id}: its requests cannot be read ({type(error).__name__}), and its "
                    "answers are not taken"
                )

    def answers(self, numbers: Sequence[int]) -> Mapping[int, Answer | None]:
        """The answers to the first of ``numbers``; None for one whose job was deleted."""
        wanted: dict[int, list[int]] = {}
        for number in numbers:
            wanted.setdefault(number >> _INDEX_BITS, []).append(number & ((1 << _INDEX_BITS) - 1))
        found: dict[int, Answer | None] = {}
        held = 0
        for source, indexes in wanted.items():
            if held >= _PAGE_BYTES:
                break
            page = self._store.answers(self._sources[source].job, indexes)
            found |= {source << _INDEX_BITS | index: answer for index, answer in page.items()}
            held += sum(len(answer.response) for answer in page.values() if answer is not None)
        return found

    def _is_like(self, other: Job, settings: JobSettings, recorded: Job) -> bool:
        why = _difference(other, settings, recorded) or self._other_day(other, recorded)
        if why is not None:
            self._left[why] += 1
        return why is None

    def _other_day(self, other: Job, recorded: Job) -> str | None:
        """Why prompts of the other job may have another day as today; None where they have not."""
        day, there = recorded.info.get(DAY), other.info.get(DAY)
        kinds = other.info.get("kinds")
        plain = kinds and not any(kind_named(name).templated for name in kinds)
        if day == there or plain or not self._holds_day():
            return None
        if there is None:
            return f"its prompts may have another day as today than {day}; dray noted none yet"
        return f"its prompts have {there} as today, not {day}; {VARIABLE}={there} begins a job with that day"

    def _keys_of(self, source: _Source, pulse: ReadingPulse) -> Iterator[tuple[int, bytes]]:
        begin, settings = source.number << _INDEX_BITS, source.job.settings
        given = settings.get("model_name") or source.job.info.get("model_name")
        model = served_name(settings["engine"], settings["model"], given)
        shards = [one for one in self._store.shards(source.job.job_id) if one.state is not ShardState.SPLIT]
        now_at = cache(self._store.now_at)
        for shard in shards:
            if not shard.inherited + shard.done:
                continue  # no row of it has an answer
            for lines in read_shard(
                now_at(shard.uri), shard.offset, shard.length, chunk_rows=_ASKED_ROWS, options=self._options
            ):
                pulse.row()
                indexes = [index_of(line) for line in lines]
                answered = self._store.answered_indexes(source.job.job_id, indexes)
                for index, line in zip(indexes, lines, strict=True):
                    if index in answered and not NAMED.search(line):  # files may change
                        request = decode(line)
                        yield begin | index, key_of(request.url, request.body, model)
        for index, key in _reused_keys(source.job, shards, now_at, self._options):
            yield begin | index, key


def _reused_keys(
    job: Job, shards: Sequence[Shard], now_at: Callable[[str], str], options: ObjectStoreOptions | None
) -> Iterator[tuple[int, bytes]]:
    """Rows that the job itself took from an earlier one: they are in no shard."""
    uris: Iterable[str | None] = [job.info.get(REUSED_AT)]
    if REUSED_AT not in job.info:  # of an earlier version of dray
        uris = dict.fromkeys(f"{_PART.sub('', shard.uri)}{REUSED}" for shard in shards)
    for noted in uris:
        uri = None if noted is None else now_at(noted)
        if uri is not None and exists(uri, options=options):
            for _, line in open_lines(uri, limit=LINE_BYTES, options=options):
                assert line is not None, "no line is over the limit"
                yield key_of_reused(line)


def _difference(other: Job, settings: JobSettings, recorded: Job) -> str | None:
    """Why the answers of another job are not those that this one would get; None where they are."""
    here, there = recorded.fingerprint, other.fingerprint
    version = version_here(settings.engine)
    if (here.model, here.format) != (there.model, there.format):
        return "another model, engine, or arguments or policies that change answers"
    if version is None:
        return f"{settings.engine} is not installed where the driver runs, so that its version is unknown"
    if not versions_of(other):
        return "no engine has answered rows of it, or dray noted no versions yet"
    if versions_of(other) != {version}:
        had = ", ".join(sorted(versions_of(other)))
        return f"another version of {settings.engine} ({had}; now {version})"
    if other.info.get(TEMPLATE) != template_digest_of(settings):
        return "another chat template"
    return None
