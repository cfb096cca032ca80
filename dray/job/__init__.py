"""A batch job from settings to report, without the orchestrator around it."""

from __future__ import annotations

from dray.job.finalising import JobResult, ReplicaAccount, finalise_job
from dray.job.ingesting import engine_kind, ingest_job, open_shards
from dray.job.opening import OpenJob, open_job
from dray.job.settings import JobSettings
from dray.job.shard import ShardReceipt, run_shard
from dray.job.timeline import Timeline

__all__ = [
    "JobResult",
    "JobSettings",
    "OpenJob",
    "ReplicaAccount",
    "ShardReceipt",
    "Timeline",
    "engine_kind",
    "finalise_job",
    "ingest_job",
    "open_job",
    "open_shards",
    "run_shard",
]
