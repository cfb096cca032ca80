"""The requests of a job: how they enter (``ingest``), travel (the spool) and leave (``write_outputs``)."""

from __future__ import annotations

from dray.kinds import Kind
from dray.requests.ingest import Ingested, cut, ingest
from dray.requests.model import Outcome, Request
from dray.requests.outputs.files import write_outputs
from dray.requests.reading.frames import frame_to_source
from dray.requests.reading.inputs import digest, expand
from dray.requests.reading.readers import Limits, source_digest
from dray.requests.reading.settling import settled
from dray.requests.sources import (
    JsonlBatch,
    RowDefaults,
    Rows,
    RowShape,
    Source,
    SqlQuery,
    source_of,
    template_digest,
)
from dray.requests.spool.marks import SpoolRange
from dray.requests.spool.spool import decode, encode, index_of, read_shard

__all__ = [
    "Ingested",
    "JsonlBatch",
    "Kind",
    "Limits",
    "Outcome",
    "Request",
    "RowDefaults",
    "RowShape",
    "Rows",
    "Source",
    "SpoolRange",
    "SqlQuery",
    "cut",
    "decode",
    "digest",
    "encode",
    "expand",
    "frame_to_source",
    "index_of",
    "ingest",
    "read_shard",
    "settled",
    "source_digest",
    "source_of",
    "template_digest",
    "write_outputs",
]
