"""The markdown says the same as the page, and obeys nothing that is in the data."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.report import ErrorCode, render_markdown
from tests.support import report_jobs

pytestmark = pytest.mark.unit


def test_headline_errors_files_and_links() -> None:
    data = report_jobs.troubled()
    text = render_markdown(data, links={"Report": "out/report.html", "Runs": "http://127.0.0.1:4200/runs"})
    assert "# tickets-5f0c2a" in text
    assert "| rows finished | **2,000** | all rows |" in text
    assert f"| `context_length_exceeded` | {data.measures.errors[0].count} | `ticket-" in text
    assert "| `out/output.jsonl` | 1.22 MB | `12eb6558cdab6b08…` |" in text
    assert "- Report: `out/report.html`" in text
    assert "- Runs: [http://127.0.0.1:4200/runs](http://127.0.0.1:4200/runs)" in text


def test_a_job_without_rows() -> None:
    text = render_markdown(report_jobs.empty())
    assert "The job failed" in text
    assert "Errors by code" not in text
    assert "Files" not in text


MARKS = st.lists(  # of any text, hardly one has a mark
    st.sampled_from(["[a](b)", "](", "[", "<b>", "`", "``", "|", "\\", "&lt;", "*", "#", "\n", " ", "a"]),
    max_size=12,
).map("".join)


@given(st.text(max_size=60) | MARKS)
def test_strings_of_the_data_are_shown_not_obeyed(strange: str) -> None:
    data = report_jobs.empty()
    errors = (ErrorCode(code=strange, count=3, examples=(strange, "plain")),)
    hostile = dataclasses.replace(
        data,
        title=strange,
        reason=strange,
        model=strange,
        measures=dataclasses.replace(data.measures, errors=errors),
    )
    text = render_markdown(hostile)
    outside = re.sub(r"`[^`\n]*`|\\.", "", text)
    assert "<" not in outside.replace("&lt;", "")
    assert "](" not in outside
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
