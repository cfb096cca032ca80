"""The result store: jobs, shards and results in SQLite or PostgreSQL, with leases and the commit."""

from __future__ import annotations

from dray.storage.addresses import masked_url
from dray.store.accounts import Efficiency
from dray.store.attempt_causes import INTERRUPTIONS, AttemptCause
from dray.store.database.limits import ConnectionLimit
from dray.store.loss_records import Evidence, Verdict, VerdictStatus, Witnesses, own_event
from dray.store.option import store_option
from dray.store.records import (
    REJECTED,
    Attempt,
    Charge,
    Claim,
    CommitReceipt,
    Counts,
    Fingerprint,
    Job,
    JobLease,
    Progress,
    ReplicaRow,
    Shard,
    ShardLease,
    ShardSnapshot,
    ShardSpec,
    Spending,
    StopSignals,
    StoredNotice,
    StoredOutcome,
)
from dray.store.states import JobState, ReplicaState, ShardState
from dray.store.store import Store, open_store

__all__ = [
    "open_store",
    "masked_url",
    "store_option",
    "Store",
    "Job",
    "JobLease",
    "JobState",
    "Fingerprint",
    "Shard",
    "ShardLease",
    "ShardSpec",
    "ShardState",
    "CommitReceipt",
    "Counts",
    "Progress",
    "StoredOutcome",
    "REJECTED",
    "Attempt",
    "AttemptCause",
    "INTERRUPTIONS",
    "StoredNotice",
    "StopSignals",
    "ConnectionLimit",
    "Charge",
    "Spending",
    "Efficiency",
    "Claim",
    "VerdictStatus",
    "Evidence",
    "Verdict",
    "Witnesses",
    "own_event",
    "ReplicaRow",
    "ReplicaState",
    "ShardSnapshot",
]
