"""The requests of a job whose output was moved go along: nodes that share the new folder are to read them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from dray.errors import JobFailedError
from dray.job.open_job import OpenJob
from dray.job.rows.spooling import spool_of
from dray.requests.spool.parts import part_uri
from dray.storage.files import stream_range, write_atomic
from dray.storage.objects import is_object
from dray.store import Shard


def left_behind(job: OpenJob, shards: Iterable[Shard]) -> list[str]:
    """The parts of the spool that lie in a folder of this machine which is not the run's output.

    Those in an object store are none of them: every node reaches it.
    """
    output = f"{job.settings.output.rstrip('/')}/"
    parts = dict.fromkeys(shard.uri for shard in shards)
    return [uri for uri in parts if not is_object(uri) and not uri.startswith(output)]


def brought_along(job: OpenJob, left: Iterable[str]) -> dict[str, str]:
    """Copy these parts to the run's output. Returns where each of them lies now, by where it lay.

    Raises:
        JobFailedError: the output takes no more, or a part cannot be read.
    """
    moved = {uri: part_uri(spool_of(job), number) for number, uri in enumerate(left)}
    for before, now in moved.items():
        with write_atomic(now, hashed=False, options=job.settings.objects) as file:
            for block in _blocks(before):
                file.write(block)
    return moved


def _blocks(uri: str) -> Iterator[bytes]:
    try:
        yield from stream_range(uri, 0, sys.maxsize)
    except OSError as error:
        told = (
            f"{uri}: the job's requests cannot be read, to copy them to the output: {error.strerror or error}"
        )
        raise JobFailedError(told) from error
