"""What a report says, as frozen data: made by a run, kept as JSON, rendered again at any time.

Moments are epoch seconds, durations are seconds, sizes are bytes. Nothing here holds a prompt, an
answer or a secret: the driver fills ``settings`` and ``environment``, and leaves those out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from dray.account import Account

if TYPE_CHECKING:
    from pydantic import TypeAdapter

JOB_LANE = "job"
"""The lane of phases that belong to the job as a whole; every other lane is a replica's name."""

FINISHED = "done"
"""The cause of a shard attempt that ended with its shard finished, in any case of letters."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Rows of the job. ``total == done + failed + pending``.

    ``done`` are answered rows, ``failed`` are error rows; ``skipped`` are those of the two that
    were finished before this run began, ``skipped_failed`` the error rows among these.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    pending: int = 0
    skipped_failed: int = 0  # absent from reports of earlier versions

    @property
    def finished(self) -> int:
        """Rows with a terminal outcome: answered or error."""
        return self.done + self.failed


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token totals. ``cached`` are the prompt tokens that came from the prefix cache."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt + self.completion


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Rows that needed no engine: ``repeated`` another row of the job, ``reused`` an earlier job's answer.

    ``prompt`` and ``completion`` are the tokens that engines would have computed for them.
    """

    repeated: int = 0
    reused: int = 0
    prompt: int = 0
    completion: int = 0

    @property
    def rows(self) -> int:
        """Both sorts."""
        return self.repeated + self.reused


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One stretch of the throughput curve: what was committed from ``start`` on."""

    start: float
    rows: int
    failed: int
    prompt: int
    completion: int


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """How a quantity is spread, ready to draw.

    ``counts[i]`` values lie in ``[edges[i], edges[i + 1])``; the last bar also takes in the tail, up
    to ``high``. ``scale`` is how the edges are spaced.
    Percentiles are nearest-rank, within 0.8% of the true value.
    """

    scale: Literal["linear", "log"] = "linear"
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    count: int = 0
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ErrorCode:
    """Error rows of one code, with the first few ``custom_id`` that met it, or their places in the input."""

    code: str
    count: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What one pass over the finished rows tells; made by ``Tally.snapshot``.

    ``rows`` and ``failed`` cover the job, ``tokens`` what engines computed for it; ``run_rows`` and
    ``run_tokens`` only what replicas finished in this run. ``run_answered`` of its rows are no error rows,
    and the answers of ``run_cut`` ended at their limit of tokens. Latencies are seconds from admission,
    lengths are tokens; both cover answered rows only. ``overflow`` counts rows that did not fit into the
    context, by what was done.
    """

    rows: int = 0
    failed: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    run_rows: int = 0
    run_answered: int = 0
    run_cut: int = 0
    run_tokens: Tokens = field(default_factory=Tokens)
    bucket_seconds: float = 0.0
    buckets: tuple[Bucket, ...] = ()
    latency: Distribution = field(default_factory=Distribution)
    first_token: Distribution = field(default_factory=Distribution)
    prompt_length: Distribution = field(default_factory=Distribution)
    completion_length: Distribution = field(default_factory=Distribution)
    errors: tuple[ErrorCode, ...] = ()
    saved: Saved = field(default_factory=Saved)
    overflow: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of time in a lane: of the job (ingest, cluster, inference, ...) or of a replica."""

    name: str
    start: float
    end: float
    lane: str = JOB_LANE

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(self.end - self.start, 0.0)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a shard: who held it, how it ended, and what it finished."""

    shard: int
    epoch: int
    replica: str
    cause: str
    seconds: float
    rows: int
    started: float | None = None

    @property
    def clean(self) -> bool:
        """Whether the attempt ended with its shard finished."""
        return self.cause.casefold() == FINISHED


@dataclass(frozen=True, kw_only=True)
class Moments:
    """How a replica came to its first token: Ray was ``asked``, its process ``began``, it was ``ready``.

    ``weights`` is when the fetch of the weights that it loaded began and ended, maybe before the job.
    """

    asked: float
    began: float
    ready: float
    first_token: float | None = None
    weights: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaLine:
    """One engine: where it ran, what its start took (step to seconds), when that was, and what it did.

    ``rows`` are those that were committed. ``busy_seconds`` and ``tokens_per_second`` are as of the driver's
    last look at it, None where it died before one. ``tuned`` has the engine arguments that it found with
    ``--auto``, and what they were worth.
    """

    name: str
    node: str = ""
    startup: Mapping[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    busy_seconds: float | None = None
    rows: int = 0
    tokens_per_second: float | None = None
    tuned: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the driver decided ``at`` a moment about how many replicas there are to be, and why."""

    at: float
    line: str


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file that the job wrote. ``size`` is in bytes, ``sha256`` in hex."""

    name: str
    uri: str
    size: int
    sha256: str
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything that the report shows.

    The job was ``created`` when it was opened first; this run of it ``started`` and ``ended``.
    ``seconds`` has ``total``, ``ingest``, ``cluster``, ``weights``, ``engine_start``, ``inference``,
    ``finalise`` and ``other`` of this run; phases that overlap are each counted whole. ``retries`` maps a
    cause to how often it led to another attempt, ``unused`` a replica that answered nothing to the reason.
    ``account`` is the bill of the whole job, its earlier runs included.
    """

    job_id: str
    state: str
    generated_at: float
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    title: str = ""
    model: str = ""
    kind: str = ""
    engine: str = ""
    reason: str = ""
    counts: Counts = field(default_factory=Counts)
    tokens: Tokens = field(default_factory=Tokens)
    seconds: Mapping[str, float] = field(default_factory=dict)
    measures: Measures = field(default_factory=Measures)
    phases: tuple[Phase, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    replicas: tuple[ReplicaLine, ...] = ()
    interruptions: int = 0
    retries: Mapping[str, int] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    files: tuple[OutputFile, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    account: Account | None = None
    format: int = 1

    @property
    def rows_per_second(self) -> float | None:
        """Rows of this run for each second of inference; None where there was none."""
        return _rate(self.measures.run_rows, self.seconds.get("inference", 0.0))

    @property
    def tokens_per_second(self) -> float | None:
        """Prompt and completion tokens of this run for each second of inference, or None."""
        return _rate(self.measures.run_tokens.total, self.seconds.get("inference", 0.0))

    def to_json(self) -> str:
        """One JSON object; ``from_json`` reads it back."""
        return _adapter().dump_json(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> ReportData:
        """Read what ``to_json`` wrote; keys of newer versions are ignored.

        Raises ValueError where the text is not such an object.
        """
        return _adapter().validate_json(text)


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if amount and seconds > 0 else None


@cache
def _adapter() -> TypeAdapter[ReportData]:
    from pydantic import TypeAdapter  # only needed where a report is kept or read

    return TypeAdapter(ReportData)
