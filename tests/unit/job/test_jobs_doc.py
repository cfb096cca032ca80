"""docs/jobs.md and docs/reference.md: options, states, keys and columns are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dray.cli.app import app
from dray.cli.options import request_of
from dray.cli.status import _EXIT_CODES
from dray.job.beginning.identity import _TUNING, derived_job_id, fingerprint_of
from dray.job.ending.result import JobResult
from dray.job.options.resolving import NoBlocks, job_settings
from dray.store import JobState
from dray.store.database.schema import metadata, results

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs"
JOBS = (DOCS / "jobs.md").read_text()
REFERENCE = (DOCS / "reference.md").read_text()


def part(page: str, name: str) -> str:
    """What stands between a page's marks of this name."""
    return page.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the lines of a table that begin with code or words, its head left out."""
    return [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()[3:] if line
    ]


def options(cell: str) -> list[str]:
    return re.findall(r"`(--[a-z-]+)", cell)


CHANGES = {name: told for cell, told in rows(part(JOBS, "identity")) for name in options(cell)}
"""What becomes of the job for each option of ``dray run``."""


def test_each_option_of_run_is_told_once() -> None:
    told = [name for cell, _ in rows(part(JOBS, "identity")) for name in options(cell)]
    known = [name for one in app["run"].assemble_argument_collection() for name in one.names]
    assert sorted(told) == sorted(name for name in known if name.startswith("--"))


def test_engine_arguments_that_change_no_answer() -> None:
    assert set(re.findall(r"`(\w+)`", part(JOBS, "tuning").replace("(but for `dummy`)", ""))) == _TUNING


OTHERS: dict[str, Any] = {
    "--kind": "completion", "--prompt-column": "b", "--template": "{a}", "--messages-column": "a",
    "--system-prompt": "s", "--image-column": "b", "--image-root": "/tmp", "--audio-column": "b",
    "--audio-root": "/tmp", "--video-column": "b", "--video-root": "/tmp", "--document-column": "b",
    "--id-column": "b", "--keep-columns": ["b"], "--delimiter": ";", "--quoting": "none",
    "--max-tokens": 7, "--temperature": 0.5, "--top-p": 0.5, "--seed": 7, "--param": ["n=2"],
    "--model-name": "m", "--model": "other", "--engine-arg": ["seed=7"], "--overflow": "shorten",
    "--skip-invalid": True, "--dedupe": True, "--reuse": True, "--order": "input", "--shard-rows": 7,
    "--replicas": 2, "--replica-cpus": 2.0, "--replica-gpus": 1.0, "--stall-seconds": 7.0,
    "--cluster": "10.0.0.5:6379", "--completion-window": "1h", "--deadline": "1h", "--budget": 7.0,
    "--price": 7.0, "--output": "/elsewhere", "--format": "parquet", "--part-bytes": 4096,
    "--overwrite": True, "--store": "/jobs.db", "--resume": True,
}  # fmt: skip
"""Another value of each option that one command can change by itself."""


@pytest.mark.parametrize("option", OTHERS)
def test_what_an_option_makes_of_the_job(option: str, tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("a,b\n1,2\n")

    def name(**changes: Any) -> str:
        given = {"model": "m", "output": "/out", "engine": "simulated", "prompt_column": "a"} | changes
        if {"template", "messages_column"} & changes.keys():
            del given["prompt_column"]
        if "document_column" in changes:
            given["kind"] = "score"
        settings = job_settings(request_of([str(table)], given), NoBlocks())
        return derived_job_id(settings, fingerprint_of(settings))

    changed = name(**{option[2:].replace("-", "_"): OTHERS[option]}) != name()
    assert changed == (CHANGES[option] == "another job")


def test_states_with_the_exit_codes_of_their_runs() -> None:
    table = part(
        JOBS.replace("## States", "<!-- begin states -->").replace("## Stop and", "<!-- end states -->"),
        "states",
    )
    found = {
        state: code.strip("| ")
        for state, code in re.findall(r"^\| `(\w+)` \| .* \| ?(\d*) ?\|$", table, re.MULTILINE)
    }
    assert found.keys() == set(JobState)
    assert {state: int(code) for state, code in found.items() if code} == {
        str(state): _EXIT_CODES.get(state, 1) for state in JobState if state.at_rest
    }


def test_keys_of_a_result() -> None:
    table = REFERENCE.partition("`dray run --json` and `dray resume --json`:")[2].partition(
        "`dray status --json`"
    )[0]
    named = [
        name
        for line in table.splitlines()
        for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    ]
    assert sorted(named) == sorted(field.name for field in fields(JobResult))


def test_columns_of_results_and_tables() -> None:
    named = re.findall(r"`(\w+)`", "".join(cells[0] for cells in rows(part(REFERENCE, "results"))))
    assert sorted(named) == sorted(column.name for column in results.c)
    tables = REFERENCE.partition("| table | one line for each |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)`", tables, re.MULTILINE)) == sorted(metadata.tables)
