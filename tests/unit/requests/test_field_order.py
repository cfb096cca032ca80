"""Lines of a template that change places, so that rows share longer prefixes."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.kinds import Kind
from dray.planner.workload import InputLines
from dray.requests.columns.field_order import MOST_LINES, LineValues, best_order
from dray.requests.ingest import ingest
from dray.requests.reading.readers import files_of
from dray.requests.reading.reordering import reordered
from dray.requests.row_shape import RowShape
from dray.requests.shape_digest import template_digest
from dray.requests.sources import Rows, Source
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

TEMPLATE = "Judge this.\nReview: {review}\nTitle: {title}\nBrand: {brand}\nSentiment:"
ROWS = [
    {"review": f"unlike any other {row}", "title": f"product {row % 6}", "brand": f"brand {row % 2}"}
    for row in range(60)
]


def table(folder: Path, rows: list[dict[str, str]] | None = None, name: str = "in.csv") -> str:
    path = folder / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["review", "title", "brand"])
        writer.writeheader()
        writer.writerows(ROWS if rows is None else rows)
    return str(path)


def source(path: str, template: str = TEMPLATE, *, reorder: bool = True) -> Source:
    return source_of(path, kind=Kind.COMPLETION, template=template, reorder_fields=reorder)


def prompts(folder: Path, of: Source, said: list[str] | None = None) -> list[str]:
    said = [] if said is None else said
    ingested = ingest(of, spool_uri=str(folder / "spool.jsonl"), say=said.append)
    [part] = ingested.parts
    return [json.loads(line)["b"]["prompt"] for line in Path(part.uri).read_text().splitlines()]


def test_what_repeats_comes_first_and_the_text_of_its_own_last(tmp_path: Path) -> None:
    said: list[str] = []
    found = prompts(tmp_path, source(table(tmp_path)), said)
    assert found[7] == (
        "Judge this.\nBrand: brand 1\nTitle: product 1\nReview: unlike any other 7\nSentiment:"
    )
    assert said == [
        "the template's lines change places (brand, title, review): rows share 49% of their text with the "
        "row before, 0% in the order that was given"
    ]


def test_without_the_option_lines_stay(tmp_path: Path) -> None:
    found = prompts(tmp_path, source(table(tmp_path), reorder=False))
    assert found[0] == TEMPLATE.format(**ROWS[0])


def test_the_plan_counts_the_prompts_that_a_run_sends(tmp_path: Path) -> None:
    of = source(table(tmp_path))
    planned = [json.loads(line)["b"]["prompt"] for line in InputLines(of)]
    assert planned == prompts(tmp_path, of)


def test_a_column_that_follows_from_another_does_not_part_what_that_one_joins(tmp_path: Path) -> None:
    """The brand follows from the title, so it may stand on either side of it, but not behind the review."""
    found = prompts(tmp_path, source(table(tmp_path), "Brand: {brand}\nReview: {review}\nTitle: {title}"))
    assert found[7] == "Brand: brand 1\nTitle: product 1\nReview: unlike any other 7"


def test_lines_move_within_their_run_alone(tmp_path: Path) -> None:
    template = "{review}\n{title}\n---\n{review}\n{brand}\n"
    found = prompts(tmp_path, source(table(tmp_path), template))
    review = ROWS[7]["review"]
    assert found[7] == f"product 1\n{review}\n---\n{review}\nbrand 1\n"  # the second run repeats nothing


def test_rows_that_are_wrong_do_not_count_and_are_reported_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    rows: list[Mapping[str, object]] = [*ROWS, {"review": "r"}, {"review": None, "title": "t", "brand": "b"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no json\n")
    ingested = ingest(source(str(path)), spool_uri=str(tmp_path / "spool.jsonl"), skip_invalid=True)
    assert [one.error_code for page in ingested.rejects() for one in page] == [
        "unknown_template_column", "missing_value", "invalid_json",
    ]  # fmt: skip
    assert ingested.requests == len(ROWS)


def test_nothing_that_repeats_leaves_the_template_as_it_is(tmp_path: Path) -> None:
    rows = [{"review": f"a {row}", "title": f"b {row}", "brand": f"c {row}"} for row in range(20)]
    of = source(table(tmp_path, rows))
    found, told = reordered(of, files_of(of))
    assert found.shape.template == TEMPLATE
    assert told == "the template's lines stay in their order: rows share 0% of their text with the row before"


def test_an_empty_table_is_left_to_ingest(tmp_path: Path) -> None:
    of = source(table(tmp_path, []))
    found, _ = reordered(of, files_of(of))
    assert found.shape.template == TEMPLATE


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"template": "{review} {title}"}, "no two neighbouring lines of the template name columns"),
        ({"template": "{review}\n\n{title}"}, "no two neighbouring lines"),
        ({"template": "{review}\n{title"}, "the template is broken"),
        ({"prompt_column": "review"}, "reorder_fields goes with a template"),
        ({}, "reorder_fields goes with a template"),
    ],
)
def test_what_cannot_change_places_is_refused_at_once(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        source_of("in.csv", reorder_fields=True, **options)


def test_the_option_makes_another_job_and_its_absence_the_one_of_before() -> None:
    plain, moved = (
        template_digest(Rows(inputs=("in.csv",), format="csv", shape=RowShape(**values)))
        for values in ({"template": "{a}\n{b}"}, {"template": "{a}\n{b}", "reorder_fields": True})
    )
    assert plain == "847bc8837cc568ed4cf3a31b5251e27e14363bb1a5b5ba77ad98dc3ffe2c6793"
    assert moved != plain


TABLES = st.integers(1, 5).flatmap(
    lambda lines: st.lists(
        st.lists(st.sampled_from(["", "a", "bb", "ccc", "dddddd"]), min_size=lines, max_size=lines),
        min_size=1,
        max_size=12,
    )
)


def values_of(rows: list[list[str]]) -> LineValues:
    columns = list(zip(*rows, strict=True))
    hashes = [[hash(text) for text in column] for column in columns]
    lengths = [[len(text) for text in column] for column in columns]
    return LineValues(np.array(hashes, np.int64).view(np.uint64), np.array(lengths, np.int32))


def shared(rows: list[list[str]], order: tuple[int, ...]) -> int:
    """Characters of the leading lines that a row has in common with the row before, sorted by lines."""
    arranged = sorted([row[line] for line in order] for row in rows)
    total = 0
    for before, row in pairwise(arranged):
        for one, other in zip(before, row, strict=True):
            if one != other:
                break
            total += len(one)
    return total


@given(TABLES)
def test_no_other_order_shares_more(rows: list[list[str]]) -> None:
    every = tuple(range(len(rows[0])))
    total = max(sum(len(text) for row in rows for text in row), 1)
    order, part, given_part = best_order(values_of(rows), [list(every)])
    assert sorted(order) == list(every)
    assert part * total == pytest.approx(shared(rows, tuple(order)))
    assert given_part * total == pytest.approx(shared(rows, every))
    best = max(shared(rows, one) for one in permutations(every))
    assert best - shared(rows, tuple(order)) <= 0.02 * total  # less is not worth another order


def test_of_many_lines_those_that_repeat_most_come_first() -> None:
    count = MOST_LINES + 3
    rows = [
        [f"own {row} {line}" if line < 3 else f"same {line}" for line in range(count)] for row in range(9)
    ]
    order, part, given_part = best_order(values_of(rows), [list(range(count))])
    assert order == [*range(3, count), 0, 1, 2]
    assert (given_part, part > 0.5) == (0.0, True)
