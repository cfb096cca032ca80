"""docs/outputs.md: its columns are the files', and its programs join answers with the rows of a CSV file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dray.kinds import output_columns
from dray.requests.ingest import cut, ingest
from dray.requests.model import Outcome
from dray.requests.outputs.files import write_outputs
from dray.requests.outputs.parquet import ERRORS_SCHEMA, output_schema
from dray.requests.spool.spool import decode, read_shard
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[3] / "docs" / "outputs.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_columns() -> None:
    table = PAGE.partition("| type | |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", "".join(rows)) == output_schema(output_columns()).names
    told = PAGE.partition("`errors.parquet` has ")[2].partition(".\n")[0]
    assert re.findall(r"`(\w+)`", told) == ERRORS_SCHEMA.names


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job over a CSV file with a blank line, of whose five rows one is bad and one fails.

    Its columns are those of the table in examples/tickets; the outputs have a column ``text``, too.
    """
    monkeypatch.chdir(tmp_path)
    Path("reviews.csv").write_text('id,text\n07,good\n\n08,"so\nso"\n09,bad\n10\n11,fine\n')
    source = source_of("reviews.csv", prompt_column="text", id_column="id")
    ingested = ingest(source, spool_uri="spool", skip_invalid=True)
    rows = [outcome for page in ingested.rejects() for outcome in page]
    for part in cut(ingested, target_rows=9):
        for chunk in read_shard(part.uri, part.offset, part.length):
            rows += map(answered, map(decode, chunk))
    rows.sort(key=lambda row: row.index)
    write_outputs([rows], directory="out", format="parquet")
    write_outputs([rows], directory="out", format="jsonl")


def answered(request: Any) -> Outcome:
    said = request.body["messages"][0]["content"].upper()
    if said == "BAD":
        return Outcome(request.index, request.custom_id, error_code="poison", error_message="it was")
    body = b'{"choices":[{"message":{"content":"%b"},"finish_reason":"stop"}]}'
    return Outcome(request.index, request.custom_id, response=body % said.replace("\n", "\\n").encode())


@pytest.mark.usefixtures("job")
def test_the_programs_join_answers_with_rows() -> None:
    by_index, by_id, of_lines = (run(program) for program in PROGRAMS)
    answers = ["GOOD", "SO\nSO", None, None, "FINE"]
    joined = by_index["joined"]
    assert list(joined["id"]) == [7, 8, 9, 10, 11]
    assert list(joined["answer"].astype(object).where(joined["answer"].notna(), None)) == answers
    assert list(joined["text"].fillna("")) == ["good", "so\nso", "bad", "", "fine"]
    assert list(joined["code"].fillna("")) == ["", "", "poison", "invalid_csv", ""]
    joined = by_id["joined"]
    assert list(joined["id"]) == ["07", "08", "09", "10", "11"]
    assert list(joined["answer"].astype(object).where(joined["answer"].notna(), None)) == answers
    assert list(joined["text"].fillna("")) == ["good", "so\nso", "bad", "", "fine"]
    assert of_lines["answers"] == {place: text for place, text in enumerate(answers) if text is not None}


def run(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(program, names)
    return names
