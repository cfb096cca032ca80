"""What a job came to: the result of a flow, and what ``--json`` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dray.report import ReportData
from dray.requests.outputs.files import Written


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What a job came to; ``as_dict`` is what ``dray run --json`` prints.

    ``output`` and ``errors`` are each a file, or the pattern of several: ``output-*.jsonl``. ``saved`` has
    the rows that needed no engine, and their tokens; ``overflow`` those that did not fit, by what was done.
    ``tuned`` has the engine arguments that a replica found with ``--auto``, by its name; ``error_codes`` how
    many error rows have each code.
    """

    job_id: str
    state: str
    counts: dict[str, int]
    tokens: dict[str, int]
    seconds: dict[str, float]
    interruptions: int
    retries: dict[str, int]
    cost: dict[str, Any] | None
    output: str | None
    errors: str | None
    report: str | None
    saved: dict[str, int] = field(default_factory=dict)
    overflow: dict[str, int] = field(default_factory=dict)
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    error_codes: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(self.__dict__)


def result_of(data: ReportData, written: Written | None, report: str | None) -> JobResult:
    """The result that the report's data tell, with the addresses of its files."""
    counts = data.counts
    return JobResult(
        job_id=data.job_id,
        state=data.state,
        counts={
            "total": counts.total,
            "done": counts.done,
            "failed": counts.failed,
            "skipped": counts.skipped,
        },
        tokens={
            "prompt": data.tokens.prompt,
            "cached": data.tokens.cached,
            "completion": data.tokens.completion,
        },
        seconds=dict(data.seconds),
        interruptions=data.interruptions,
        retries=dict(data.retries),
        cost=data.account.as_dict() if data.account else None,
        output=written.output.uri if written else None,
        errors=written.errors.uri if written else None,
        report=report,
        saved=asdict(data.measures.saved),
        overflow=dict(data.measures.overflow),
        tuned={one.name: dict(one.tuned) for one in data.replicas if one.tuned},
        error_codes={one.code: one.count for one in data.measures.errors},
    )
