"""Accounting of a job, and its report: one HTML file, markdown, a line of progress."""

from __future__ import annotations

from dray.report.accounting import Tally
from dray.report.artifact import render_markdown
from dray.report.data import (
    JOB_LANE,
    Attempt,
    Counts,
    Decision,
    ErrorCode,
    Measures,
    Moments,
    OutputFile,
    Phase,
    ReplicaLine,
    ReportData,
    Tokens,
)
from dray.report.page import render_html
from dray.report.progress import Meter, Pulse, progress_line

__all__ = [
    "JOB_LANE",
    "Attempt",
    "Counts",
    "ErrorCode",
    "Measures",
    "Meter",
    "Moments",
    "Decision",
    "OutputFile",
    "Phase",
    "Pulse",
    "ReplicaLine",
    "ReportData",
    "Tally",
    "Tokens",
    "progress_line",
    "render_html",
    "render_markdown",
]
