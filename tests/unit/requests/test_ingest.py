"""Input into the spool: what is refused, what is skipped, and that nothing is lost."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import InputError, Problem
from dray.kinds import Kind
from dray.requests.ingest import Ingested, cut, ingest
from dray.requests.model import Outcome, Request
from dray.requests.reading.readers import ReadLimits
from dray.requests.row_shape import RowShape
from dray.requests.rules import note_on_fields, note_on_names
from dray.requests.sources import RowDefaults, source_of
from dray.requests.spool.spool import decode, read_shard

pytestmark = pytest.mark.unit

CHAT = "/v1/chat/completions"


def row(custom_id: str = "a", url: str = CHAT, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def write(folder: Path, *lines: str, name: str = "in.jsonl", end: str = "\n") -> str:
    path = folder / name
    path.write_bytes(end.join(lines).encode())
    return str(path)


def spool_of(folder: Path) -> Path:
    return folder / "job" / "spool.jsonl"


def take(folder: Path, *inputs: str, **options: Any) -> Ingested:
    return ingest(source_of(inputs), spool_uri=str(spool_of(folder)), **options)


def requests(ingested: Ingested) -> list[Request]:
    ranges = cut(ingested, target_rows=3)
    chunks = (chunk for part in ranges for chunk in read_shard(part.uri, part.offset, part.length))
    return [decode(line) for chunk in chunks for line in chunk]


def refused(folder: Path, *inputs: str, **options: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        take(folder, *inputs, **options)
    assert list(folder.glob("job/*")) == []  # nothing is published, nothing is left behind
    return list(caught.value.problems)


def error_rows(ingested: Ingested) -> list[Outcome]:
    return [outcome for page in ingested.rejects(batch=2) for outcome in page]


def test_rows_of_several_files_keep_their_order(tmp_path: Path) -> None:
    first = write(tmp_path, row("a", n=0), "", "  ", row("b", n=1), name="1.jsonl", end="\r\n")
    (tmp_path / "2.jsonl.gz").write_bytes(b"\xef\xbb\xbf" + row("c", n=2).encode())
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress((tmp_path / "2.jsonl.gz").read_bytes()))
    ingested = take(tmp_path, first, str(tmp_path / "2.jsonl.gz"))
    assert [(r.index, r.custom_id, r.body) for r in requests(ingested)] == [
        (0, "a", {"n": 0}),
        (1, "b", {"n": 1}),
        (2, "c", {"n": 2}),
    ]
    assert (ingested.rows, ingested.requests, ingested.rejects_uri) == (3, 3, None)
    assert [r.url for r in requests(ingested)] == [CHAT] * 3
    assert ingested.kinds == {Kind.CHAT}


def test_defaults_reach_the_bodies(tmp_path: Path) -> None:
    defaults = RowDefaults(sampling={"max_tokens": 5})
    ingested = take(tmp_path, write(tmp_path, row("a"), row("b", max_tokens=9)), defaults=defaults)
    assert [r.body["max_tokens"] for r in requests(ingested)] == [5, 9]


def test_each_problem_names_file_line_and_field_in_input_order(tmp_path: Path) -> None:
    first = write(tmp_path, "oops", row("a"), row(""), row("b", url="/v2"), name="1.jsonl")
    second = write(tmp_path, row("c"), row("a"), "[]", row("x\0"), "x" * 500, name="2.jsonl")
    problems = refused(tmp_path, first, second, limits=ReadLimits(line_bytes=400))
    assert [(p.code, p.file, p.line, p.field) for p in problems] == [
        ("invalid_json", first, 1, None),
        ("missing_custom_id", first, 3, "custom_id"),
        ("unknown_url", first, 4, "url"),
        ("duplicate_custom_id", second, 2, "custom_id"),
        ("not_an_object", second, 3, None),
        ("invalid_text", second, 4, "custom_id"),
        ("line_too_long", second, 5, None),
    ]
    assert f"{first}:2" in problems[3].message


def test_a_body_nested_too_deeply_is_a_problem_with_its_line(tmp_path: Path) -> None:
    deep = '{"custom_id":"b","url":"' + CHAT + '","body":{"x":' + "[" * 400 + "]" * 400 + "}}"
    with pytest.raises(InputError) as refused:
        take(tmp_path, write(tmp_path, row("a"), deep))
    (problem,) = refused.value.problems
    assert (problem.code, problem.line, problem.field) == ("invalid_value", 2, "body")


def test_reading_stops_once_enough_is_wrong(tmp_path: Path) -> None:
    seen: list[int] = []
    path = write(tmp_path, *["bad"] * 5000)
    problems = refused(tmp_path, path, progress=seen.append)
    assert [p.line for p in problems] == list(range(1, 21))
    assert seen[-1] == 20


def test_duplicates_are_counted_beyond_those_shown(tmp_path: Path) -> None:
    path = write(tmp_path, *[row("same") for _ in range(100)])
    with pytest.raises(InputError, match="and 79 more") as caught:
        take(tmp_path, path)
    assert (len(caught.value.problems), caught.value.total) == (20, 99)


def test_skip_invalid_turns_bad_lines_into_error_rows(tmp_path: Path) -> None:
    lines = ["oops", row("a"), row("b", url="/v2"), row("a"), row("b"), "", row("c")]
    path = write(tmp_path, *lines)
    ingested = take(tmp_path, path, skip_invalid=True)
    assert (ingested.rows, ingested.requests) == (6, 2)
    assert [(r.index, r.custom_id) for r in requests(ingested)] == [(1, "a"), (5, "c")]
    assert [(o.index, o.custom_id, o.error_code) for o in error_rows(ingested)] == [
        (0, None, "invalid_json"),
        (2, "b", "unknown_url"),
        (3, None, "duplicate_custom_id"),
        (4, None, "duplicate_custom_id"),
    ]
    messages = [o.error_message or "" for o in error_rows(ingested)]
    assert messages[0].startswith(f"{path}:1: ")
    assert f"{path}:3 has the same custom_id, 'b'" in messages[3]
    assert f"{path}:5" in messages[3]
    assert sorted(p.name for p in spool_of(tmp_path).parent.iterdir()) == [
        "spool.jsonl",
        "spool.jsonl.rejects",
    ]


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_the_error_row_of_a_text_that_cannot_be_stored_has_the_rows_id(tmp_path: Path, bad: str) -> None:
    """Of batch rows, and of rows with an id column. The id ``x`` is not ``bad`` itself."""
    texts = {"doc-17": f"a{bad}b", f"x{bad}": "fine", "doc-18": "fine"}
    batch = write(tmp_path, *(row(name, messages=text) for name, text in texts.items()))
    table = write(
        tmp_path, *(json.dumps({"id": name, "p": text}) for name, text in texts.items()), name="2.jsonl"
    )
    shape = RowShape(kind=Kind.COMPLETION, prompt_column="p", id_column="id")
    for source in (source_of(batch), source_of(table, shape)):
        ingested = ingest(source, spool_uri=str(spool_of(tmp_path)), skip_invalid=True)
        assert [(o.index, o.custom_id, o.error_code) for o in error_rows(ingested)] == [
            (0, "doc-17", "invalid_text"),
            (1, None, "invalid_text"),
        ]
        assert [r.custom_id for r in requests(ingested)] == ["doc-18"]


def test_a_bad_row_whose_id_was_taken_before_loses_it(tmp_path: Path) -> None:
    ingested = take(tmp_path, write(tmp_path, row("a"), row("a", url="/v2")), skip_invalid=True)
    assert [(o.index, o.custom_id, o.error_code) for o in error_rows(ingested)] == [(1, None, "unknown_url")]


@pytest.mark.parametrize("skip_invalid", [False, True])
def test_two_models_are_refused_naming_both(tmp_path: Path, skip_invalid: bool) -> None:
    path = write(tmp_path, row("a"), row("b", model="one"), row("c", model="two"), row("d", model="two"))
    [problem] = refused(tmp_path, path, skip_invalid=skip_invalid)
    assert (problem.code, problem.line, problem.field) == ("model_conflict", 3, "body.model")
    assert "'two'" in problem.message
    assert f"{path}:2 names 'one'" in problem.message


def test_names_of_adapters_stand_beside_that_of_the_model(tmp_path: Path) -> None:
    defaults = RowDefaults(adapters=frozenset({"support", "sales"}))
    rows = [row("a", model="support"), row("b", model="one"), row("c", model="sales"), row("d", model="one")]
    [problem] = refused(tmp_path, write(tmp_path, *rows, row("e", model="two")), defaults=defaults)
    assert (problem.code, problem.line) == ("model_conflict", 5)
    assert "one job runs one model beside its adapters (lora_modules): part the input" in problem.message
    found = take(tmp_path, write(tmp_path, *rows), defaults=defaults)
    assert (found.rows, found.model_name) == (4, "one")
    assert note_on_names(defaults, "one") == (
        "rows with the model 'one' ask the model itself, for no adapter has this name; "
        "with --model-name such rows become error rows"
    )
    alone = take(tmp_path, write(tmp_path, rows[0], rows[2]), defaults=defaults)
    assert alone.model_name is None
    for quiet, name in ((defaults, None), (RowDefaults(), "one"), (replace(defaults, model_name="m"), "m")):
        assert note_on_names(quiet, name) is None


def test_fields_that_no_row_takes_are_told() -> None:
    defaults = RowDefaults(sampling={"max_tokens": 5, "dimensions": 8})
    told = note_on_fields(defaults, {Kind.EMBEDDING})
    assert told is not None
    assert told.startswith("max_tokens: without effect, no row takes it, for the rows ask for embedding; ")
    assert note_on_fields(defaults, {Kind.CHAT}) is None
    assert note_on_fields(RowDefaults(sampling={"dimensions": 8}), {Kind.EMBEDDING}) is None


def test_a_name_like_that_of_an_adapter_is_refused_unless_it_is_the_models(tmp_path: Path) -> None:
    path = write(tmp_path, row("a", model="support"), row("b", model="suport"))
    defaults = RowDefaults(adapters=frozenset({"support", "sales"}))
    [problem] = refused(tmp_path, path, defaults=defaults)
    assert (problem.code, problem.line) == ("model_conflict", 2)
    assert problem.message == (
        "the row names the model 'suport', and there is an adapter 'support' (lora_modules): "
        "correct the row, or, if 'suport' is the model itself, say --model-name"
    )
    assert take(tmp_path, path, defaults=replace(defaults, model_name="suport")).rows == 2
    after_the_model = RowDefaults(adapters=frozenset({"llama-3-8b-sql"}))
    path = write(tmp_path, row("a", model="llama-3-8b-sql"), row("b", model="llama-3-8b"))
    assert take(tmp_path, path, defaults=after_the_model).model_name == "llama-3-8b"


def test_any_one_model_is_fine_and_known(tmp_path: Path) -> None:
    path = write(tmp_path, row("a"), row("b", model="one"), row("c", model="one"))
    assert take(tmp_path, path).model_name == "one"


def test_with_a_name_given_other_models_are_the_engines_affair(tmp_path: Path) -> None:
    path = write(tmp_path, row("a", model="one"), row("b", model="two"))
    ingested = take(tmp_path, path, defaults=RowDefaults(model_name="mine"))
    assert (ingested.model_name, ingested.requests) == ("mine", 2)


@pytest.mark.parametrize("skip_invalid", [False, True])
def test_embeddings_do_not_mix_with_generation(tmp_path: Path, skip_invalid: bool) -> None:
    path = write(tmp_path, row("a"), row("b", url="/v1/completions"), row("c", url="/v1/embeddings"))
    [problem] = refused(tmp_path, path, skip_invalid=skip_invalid)
    assert (problem.code, problem.line, problem.field) == ("mixed_kinds", 3, "url")
    assert f"{path}:1" in problem.message


def test_chat_and_completions_mix(tmp_path: Path) -> None:
    path = write(tmp_path, row("a"), row("b", url="/v1/completions"))
    assert take(tmp_path, path).kinds == {Kind.CHAT, Kind.COMPLETION}


@pytest.mark.parametrize("content", ["", "\n\n  \n", "\ufeff"])
@pytest.mark.parametrize("skip_invalid", [False, True])
def test_an_empty_input_is_refused(tmp_path: Path, content: str, skip_invalid: bool) -> None:
    path = write(tmp_path, content)
    [problem] = refused(tmp_path, path, skip_invalid=skip_invalid)
    assert (problem.code, problem.file) == ("empty_input", path)


def test_damage_in_a_later_file_comes_after_the_problems_before_it(tmp_path: Path) -> None:
    first = write(tmp_path, "oops", row("a"))
    second = tmp_path / "2.jsonl.gz"
    second.write_bytes(gzip.compress(row("b").encode() * 1000)[:-20])
    problems = refused(tmp_path, first, str(second))
    assert [(p.code, p.file) for p in problems] == [
        ("invalid_json", first),
        ("unreadable_compression", str(second)),
    ]


def test_progress_counts_rows(tmp_path: Path) -> None:
    seen: list[int] = []
    take(tmp_path, write(tmp_path, *[row(str(n)) for n in range(3000)]), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 3000
    assert len(seen) > 2


def test_min_shards_cuts_small_inputs_too(tmp_path: Path) -> None:
    ingested = take(tmp_path, write(tmp_path, *[row(str(n)) for n in range(10)]))
    assert [part.rows for part in cut(ingested, target_rows=100, min_shards=4)] == [2, 3, 2, 3]
    assert len(cut(ingested, target_rows=1, max_shards=3)) == 3
    assert len(cut(ingested, target_rows=100, min_shards=50)) == 10


line_kinds = st.sampled_from(["good", "json", "url", "blank"])


@given(st.lists(st.tuples(line_kinds, st.sampled_from("abcdefgh")), min_size=1, max_size=30))
def test_every_row_ends_as_one_request_or_one_error_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    tmp_path = tmp_path_factory.mktemp("job")
    texts: dict[str, Callable[[str], str]] = {
        "good": row,
        "json": lambda _: "{",
        "url": lambda name: row(name, url="/v2"),
        "blank": lambda _: " ",
    }
    path = write(tmp_path, *[texts[kind](name) for kind, name in rows])
    present = [(kind, name) for kind, name in rows if kind != "blank"]
    if not present:
        assert refused(tmp_path, path, skip_invalid=True)[0].code == "empty_input"
        return
    firsts = {name: kind for kind, name in reversed(present) if kind != "json"}  # they keep their ids
    if "good" not in firsts.values():
        assert refused(tmp_path, path, skip_invalid=True)[0].code == "no_valid_row"
        return
    ingested = take(tmp_path, path, skip_invalid=True)
    good, bad = requests(ingested), error_rows(ingested)
    assert sorted([r.index for r in good] + [o.index for o in bad]) == list(range(len(present)))
    assert [o.index for o in bad] == sorted(o.index for o in bad)
    ids = Counter([r.custom_id for r in good] + [o.custom_id for o in bad if o.custom_id is not None])
    assert max(ids.values(), default=1) == 1
    named = {name for kind, name in present if kind != "json"}
    assert set(ids) == named
    assert ingested.requests == len(good) == sum(part.rows for part in cut(ingested, target_rows=2))


@pytest.mark.heavy(one_of=3)
def test_memory_does_not_hold_the_rows(tmp_path: Path) -> None:
    import tracemalloc

    path = write(tmp_path, *[row(f"id-{n}", text="x" * 1000) for n in range(20_000)])
    tracemalloc.start()
    try:
        take(tmp_path, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20  # of 20 MB of input


def test_a_spool_in_parts_holds_the_same_rows(tmp_path: Path) -> None:
    path = write(tmp_path, *(row(f"r{number}", n=number) for number in range(40)))
    whole = requests(take(tmp_path, path))
    ingested = take(tmp_path, path, part_bytes=500)
    assert len(ingested.parts) > 5
    assert sum(part.size for part in ingested.parts) > 500 * 5
    assert max(part.size for part in ingested.parts) <= 500
    assert requests(ingested) == whole
    assert {part.uri for part in cut(ingested, target_rows=40)} == {part.uri for part in ingested.parts}


def test_repeated_ids_are_found_and_dropped_over_parts(tmp_path: Path) -> None:
    lines = [row(f"r{number % 30}", n=number) for number in range(40)]
    path = write(tmp_path, "oops", *lines)
    with pytest.raises(InputError) as caught:
        take(tmp_path, write(tmp_path, *lines, name="again.jsonl"), part_bytes=500)
    assert [problem.line for problem in caught.value.problems] == list(range(31, 41))
    assert "again.jsonl:1 " in caught.value.problems[0].message
    assert list(tmp_path.glob("job/*")) == []
    ingested = take(tmp_path, path, skip_invalid=True, part_bytes=500)
    assert [found.custom_id for found in requests(ingested)] == [f"r{number}" for number in range(30)]
    assert [outcome.index for outcome in error_rows(ingested)] == [0, *range(31, 41)]
    assert sorted(file.name for file in spool_of(tmp_path).parent.iterdir()) == sorted(
        ["spool.jsonl", "spool.jsonl.rejects", *(Path(part.uri).name for part in ingested.parts[1:])]
    )


def test_a_refusal_late_in_the_input_leaves_no_part(tmp_path: Path) -> None:
    lines = [row(f"r{number}") for number in range(40)]
    assert [
        problem.line for problem in refused(tmp_path, write(tmp_path, *lines, "oops"), part_bytes=500)
    ] == [41]
