"""Which column is asked where no option says so, from files as hubs and trainers write them."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet

from dray.errors import ConfigError, InputError
from dray.kinds import Kind
from dray.requests.ingest import Ingested, cut, ingest
from dray.requests.model import Request
from dray.requests.reading.readers import source_digest
from dray.requests.reading.settling import settled
from dray.requests.sources import RowDefaults, Rows, Source
from dray.requests.spool.spool import decode, read_shard
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be"}
ANSWER = {"role": "assistant", "content": "yes"}
BATCH = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [USER]}}


def write(folder: Path, *rows: object, name: str = "in.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def table(folder: Path, columns: dict[str, Any], name: str = "in.parquet") -> str:
    parquet.write_table(pyarrow.table(columns), folder / name)
    return str(folder / name)


def take(folder: Path, source: Source, said: list[str] | None = None, **options: Any) -> Ingested:
    spool = str(folder / "job" / "spool.jsonl")
    return ingest(source, spool_uri=spool, say=None if said is None else said.append, **options)


def requests(ingested: Ingested) -> list[Request]:
    return [
        decode(line)
        for part in cut(ingested, target_rows=1000)
        for chunk in read_shard(part.uri, part.offset, part.length)
        for line in chunk
    ]


def asked(ingested: Ingested) -> list[tuple[str, Any]]:
    assert {request.url for request in requests(ingested)} == {"/v1/chat/completions"}
    return [(request.custom_id, request.body["messages"]) for request in requests(ingested)]


@pytest.mark.parametrize(
    ("rows", "options", "expected", "column"),
    [
        ([{"id": 1, "messages": [USER]}, {"id": 2, "messages": [USER]}], {},
         [("row-0", [USER]), ("row-1", [USER])], "messages"),
        ([{"id": 7, "messages": [USER]}], {"id_column": "id"}, [("7", [USER])], "messages"),
        ([{"custom_id": "x", "messages": [USER]}], {}, [("x", [USER])], "messages"),
        ([{"prompt": [USER], "chosen": [ANSWER]}], {"system_prompt": "be"},
         [("row-0", [SYSTEM, USER])], "prompt"),
        ([{"prompt": "hi", "messages": [USER, ANSWER]}], {}, [("row-0", [USER, ANSWER])], "messages"),
        ([{"conversations": [{"from": "human", "value": "hi"}]}], {}, [("row-0", [USER])], "conversations"),
        ([{"messages": None}, {"messages": [USER]}], {}, [("row-1", [USER])], "messages"),
    ],
)  # fmt: skip
def test_json_lines_of_messages_are_found_by_their_rows(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], expected: object, column: str
) -> None:
    said: list[str] = []
    ingested = take(tmp_path, source_of(write(tmp_path, *rows), **options), said, skip_invalid=True)
    assert asked(ingested) == expected
    assert len(said) == 1
    assert f"the column {column!r}" in said[0]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"default": None}}}
FIELDS = {"max_tokens": 3, "temperature": 0, "tools": [TOOL], "stop": None, "model": "gpt-4o"}


def test_bodies_without_an_envelope_keep_their_fields(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [USER], "id": 1, "label": "x", **FIELDS}, {"messages": [USER]})
    said: list[str] = []
    ingested = take(tmp_path, source_of(path), said, defaults=RowDefaults(sampling={"max_tokens": 9}))
    first, second = requests(ingested)
    assert first.body == {"messages": [USER], **FIELDS}
    assert second.body == {"messages": [USER], "max_tokens": 9}
    assert ingested.model_name == "gpt-4o"
    [told] = said
    assert "max_tokens, temperature, tools, stop of each row go into its request, and model where" in told
    assert "--messages-column messages takes the messages alone" in told
    named = take(tmp_path, source_of(path, messages_column="messages"))
    assert [request.body for request in requests(named)] == [{"messages": [USER]}] * 2


OBJECTS: dict[str, Any] = {
    "tools": [TOOL],
    "functions": [TOOL["function"]],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"default": None}}},
    "structured_outputs": {"choice": ["a", "b"]},
    "logit_bias": {"17": -1},
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_objects_beside_messages_may_be_json_in_a_text(tmp_path: Path, name: str) -> None:
    """As hubs have them, whose columns have one type. Nulls in them are the user's own."""
    texts = {field: json.dumps(value, indent=1) for field, value in OBJECTS.items()}
    first = {"messages": [USER], **texts, "tools": "\n " + texts["tools"], "stop": "[end]"}
    second = dict.fromkeys(first) | {"messages": [USER], "tool_choice": "auto"}
    third = dict.fromkeys(first) | dict.fromkeys(OBJECTS, " null\n") | {"messages": [USER], "tools": ""}
    if name == "in.jsonl":
        told = ({key: value for key, value in row.items() if value is not None} for row in (second, third))
        path = write(tmp_path, first, *told)
    else:
        path = table(tmp_path, {key: [first[key], second[key], third[key]] for key in first})
    bodies = [request.body for request in requests(take(tmp_path, source_of(path)))]
    assert bodies == [
        {"messages": [USER], **OBJECTS, "stop": "[end]"},
        {"messages": [USER], "tool_choice": "auto"},
        {"messages": [USER], **(dict.fromkeys(OBJECTS) if name == "in.jsonl" else {})},
    ]


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[{"type": "patient"', "invalid_json"),
        ("{patient}", "invalid_json"),
        ('["patient\\u0000"]', "invalid_text"),
        ("[" * 300 + "]" * 300, "invalid_value"),
    ],
)
def test_tools_that_are_no_json_are_a_problem_of_their_row(
    tmp_path: Path, name: str, text: str, code: str
) -> None:
    path = (
        write(tmp_path, {"messages": [USER], "tools": "[]"}, {"messages": [USER], "tools": text})
        if name == "in.jsonl"
        else table(tmp_path, {"messages": [[USER], [USER]], "tools": ["[]", text]})
    )
    with pytest.raises(InputError) as caught:
        take(tmp_path, source_of(path))
    [problem] = caught.value.problems
    assert (problem.code, problem.line, problem.field) == (code, 2, "tools")
    assert "patient" not in problem.message
    assert code != "invalid_json" or "write tools with json.dumps" in problem.message


@pytest.mark.parametrize("batch", [True, False])
def test_a_null_yields_to_the_jobs_defaults(tmp_path: Path, batch: bool) -> None:
    """As pandas writes rows of which some have a temperature."""
    bodies = [{"messages": [USER], "temperature": value} for value in (1.0, None)]
    rows = [BATCH | {"custom_id": str(n), "body": body} for n, body in enumerate(bodies)]
    path = write(tmp_path, *(rows if batch else bodies))
    ingested = take(tmp_path, source_of(path), defaults=RowDefaults(sampling={"temperature": 0.2}))
    assert [request.body["temperature"] for request in requests(ingested)] == [1.0, 0.2]


def test_a_field_that_the_first_rows_lack_counts_too_and_is_told_at_the_end(tmp_path: Path) -> None:
    row = {"messages": [USER], "max_tokens": 3, "stop": None}
    rows = [{"messages": [USER], "max_tokens": 4}] * 30 + [row | {"seed": 1, "system": "be"}]
    said: list[str] = []
    ingested = take(tmp_path, source_of(write(tmp_path, *rows)), said)
    assert requests(ingested)[-1].body == {**row, "messages": [SYSTEM, USER], "seed": 1}
    assert "; max_tokens of each row goes into its request (" in said[0]
    assert said[1:] == ["later rows also had seed, stop, system, which went into their requests"]


@pytest.mark.parametrize("place", [5, 25])
@pytest.mark.parametrize("before", [{}, {"temperature": 0.5}, {"documents": []}])
def test_the_fields_of_a_row_do_not_depend_on_its_place(
    tmp_path: Path, place: int, before: dict[str, Any]
) -> None:
    others = [{"messages": [USER], **before}] * (place - 1)
    bare = {"messages": [USER], "documents": [{"text": "x"}]}
    full = {"messages": [USER], "documents": [], "temperature": 0.5, "model": "a"}
    path = write(tmp_path, *others, bare, full)
    found = [request.body for request in requests(take(tmp_path, source_of(path)))]
    assert found[-2:] == [{"messages": [USER]}, full]


CHATS: list[tuple[Any, Any, list[Any]]] = [
    ([{"from": "human", "value": "hi"}], "be", [SYSTEM, USER]),
    ([{"from": "system", "value": "own"}, {"from": "human", "value": "hi"}], "be",
     [{"role": "system", "content": "own"}, USER]),
    ([{"from": "human", "value": "hi"}], None, [{"role": "system", "content": "job"}, USER]),
    ([{"from": "human", "value": "hi"}], " ", [{"role": "system", "content": "job"}, USER]),
]  # fmt: skip
"""What a row has, its system column, and what is asked beside ``--system-prompt job``."""


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_a_text_in_the_column_system_goes_before_the_messages(tmp_path: Path, name: str) -> None:
    """As LLaMA-Factory documents rows of ShareGPT's kind."""
    rows = [{"conversations": chat, "system": text, "tools": "[]"} for chat, text, _ in CHATS]
    if name == "in.jsonl":
        path = write(tmp_path, *rows)
    else:
        path = table(tmp_path, {key: [row[key] for row in rows] for key in rows[0]})
    said: list[str] = []
    found = requests(take(tmp_path, source_of(path, system_prompt="job"), said))
    assert [request.body for request in found] == [{"messages": asked, "tools": []} for *_, asked in CHATS]
    [told] = said
    assert "the column 'conversations', system messages from the column 'system'; tools of each row" in told
    assert "--messages-column conversations takes the messages alone" in told
    assert asked(take(tmp_path, source_of(path, messages_column="conversations")))[0] == ("row-0", [USER])


def test_a_row_to_classify_has_its_system_message_and_no_other_field(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [USER], "system": "be", "temperature": 0})
    [found] = requests(take(tmp_path, source_of(path, kind=Kind.CLASSIFICATION)))
    assert found.body == {"messages": [SYSTEM, USER]}


@pytest.mark.parametrize(
    ("value", "code"), [(5, "invalid_value"), ([{"type": "text"}], "invalid_value"), ("\0", "invalid_text")]
)
def test_a_system_message_that_is_no_text_is_not_lost_in_silence(
    tmp_path: Path, value: object, code: str
) -> None:
    path = table(tmp_path, {"messages": [[USER]], "system": [value]})
    with pytest.raises(InputError) as caught:
        take(tmp_path, source_of(path))
    [problem] = caught.value.problems
    assert (problem.code, problem.field) == (code, "system")
    assert code != "invalid_value" or "--messages-column" in problem.message
    assert asked(take(tmp_path, source_of(path, messages_column="messages"))) == [("row-0", [USER])]


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_what_looks_like_a_field_and_is_left_aside_is_told(tmp_path: Path, name: str) -> None:
    row = {"messages": [USER], "enable_thinking": False, "extra_body": {"top_k": 3}, "reasoning": "label"}
    path = write(tmp_path, row) if name == "in.jsonl" else table(tmp_path, {k: [v] for k, v in row.items()})
    said: list[str] = []
    assert asked(take(tmp_path, source_of(path), said)) == [("row-0", [USER])]
    assert said == [
        "messages come from the column 'messages'; left aside: enable_thinking, extra_body "
        "(--messages-column names another)"
    ]


def test_bodies_of_two_models_are_refused_as_in_the_batch_format(tmp_path: Path) -> None:
    rows = [{"messages": [USER], "model": name, "max_tokens": 3} for name in "ab"]
    with pytest.raises(InputError) as caught:
        take(tmp_path, source_of(write(tmp_path, *rows)))
    assert [problem.code for problem in caught.value.problems] == ["model_conflict"]


def test_columns_of_a_data_set_are_no_fields(tmp_path: Path) -> None:
    """There, ``model`` says who wrote the answer."""
    path = write(tmp_path, {"messages": [USER], "model": "a"}, {"messages": [USER], "model": "b", "user": 1})
    assert [request.body for request in requests(take(tmp_path, source_of(path)))] == [
        {"messages": [USER]}
    ] * 2


def test_a_nan_in_parquet_is_an_empty_cell_as_anywhere_else(tmp_path: Path) -> None:
    nan = float("nan")
    path = table(
        tmp_path, {"messages": [[USER], [USER]], "temperature": [nan, 0.5], "max_tokens": [nan, 5.0]}
    )
    defaults = RowDefaults(sampling={"temperature": 0, "max_tokens": 7})
    found = [request.body for request in requests(take(tmp_path, source_of(path), defaults=defaults))]
    assert [(body["temperature"], body["max_tokens"]) for body in found] == [(0, 7), (0.5, 5.0)]


def test_bodies_in_parquet_keep_their_fields(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        {
            "messages": [[USER], [USER], [USER]],
            "max_tokens": [3, None, 4],
            "response_format": [{"type": "text", "x": None}, None, {"type": "json_object", "x": None}],
            "label": ["a", "b", "c"],
        },
    )
    said: list[str] = []
    found = [request.body for request in requests(take(tmp_path, source_of(path), said))]
    assert found == [
        {"messages": [USER], "max_tokens": 3, "response_format": {"type": "text"}},
        {"messages": [USER]},
        {"messages": [USER], "max_tokens": 4, "response_format": {"type": "json_object"}},
    ]
    assert "max_tokens, response_format of each row go into its request" in said[0]
    odd = table(tmp_path, {"messages": [[USER]], "stop": [datetime(2020, 1, 1)]}, "odd.parquet")
    with pytest.raises(InputError) as caught:
        take(tmp_path, source_of(odd))
    assert [(p.code, p.field) for p in caught.value.problems] == [("invalid_value", "stop")]


@pytest.mark.parametrize(("number", "taken"), [("1e20", True), ("123456789012345678901234567890", False)])
@pytest.mark.parametrize("as_text", [False, True])
def test_whole_numbers_beyond_64_bits_in_a_field_are_refused(
    tmp_path: Path, number: str, taken: bool, as_text: bool
) -> None:
    """Objects in JSON lines, and texts that stand for them."""
    tools = f'[{{"function":{{"parameters":{{"maximum":{number}}}}}}}]'
    path = tmp_path / "in.jsonl"
    path.write_text(
        f'{{"messages":[{json.dumps(USER)}],"tools":{json.dumps(tools) if as_text else tools}}}\n'
    )
    if taken:
        [request] = requests(take(tmp_path, source_of(str(path))))
        assert request.body["tools"] == json.loads(tools)
        return
    with pytest.raises(InputError) as caught:
        take(tmp_path, source_of(str(path)))
    assert [(p.code, p.field) for p in caught.value.problems] == [("number_too_large", "tools")]


def test_the_column_that_is_named_is_the_one(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [ANSWER], "turns": [USER]})
    said: list[str] = []
    assert asked(take(tmp_path, source_of(path, messages_column="turns"), said)) == [("row-0", [USER])]
    assert said == []


@pytest.mark.parametrize("first", [{}, {"custom_id": "z"}, None])
def test_a_batch_file_stays_one_whatever_its_first_row(tmp_path: Path, first: object) -> None:
    said: list[str] = []
    ingested = take(tmp_path, source_of(write(tmp_path, first, BATCH)), said, skip_invalid=True)
    assert asked(ingested) == [("a", [USER])]
    assert said == []


@pytest.mark.parametrize(
    "beside",
    [
        {"url": "https://example.com/page"},
        {"url": "/r/python/comments/1"},
        {"method": "POST"},
        {"method": "GET", "url": "/index"},
        {"body": "an e-mail"},
        {"url": None, "method": 3, "body": ["x"]},
    ],
)
def test_a_data_set_may_have_columns_that_a_batch_file_has(tmp_path: Path, beside: dict[str, Any]) -> None:
    said: list[str] = []
    ingested = take(tmp_path, source_of(write(tmp_path, {"messages": [USER], **beside})), said)
    assert asked(ingested) == [("row-0", [USER])]
    assert "the column 'messages'" in said[0]
    with pytest.raises(ConfigError, match="--prompt-column") as caught:
        settled(source_of(write(tmp_path, {"text": "hi", **beside}, name="texts.jsonl")))
    assert all(repr(name) in str(caught.value) for name in beside)


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"custom_id": ...}, "missing_custom_id", "custom_id"),
        ({"url": ..., "body": {"prompt": "p"}}, "unknown_url", "url"),
        ({"url": "/v1/chat"}, "unknown_url", "url"),
        ({"url": "/v1/chat", "body": ...}, "unknown_url", "url"),
        ({"body": ...}, "missing_body", "body"),
        ({"body": "{}"}, "missing_body", "body"),
        ({"method": ..., "body": ...}, "missing_body", "body"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"body": ..., "messages": [USER]}, "unknown_field", "messages"),
        ({"body": ..., "method": ..., "messages": [USER]}, "unknown_field", "messages"),
    ],
)
def test_a_batch_file_with_one_thing_wrong_stays_one(
    tmp_path: Path, changes: dict[str, Any], code: str, field: str
) -> None:
    row = {name: value for name, value in (BATCH | changes).items() if value is not ...}
    with pytest.raises(InputError) as caught:
        take(tmp_path, source_of(write(tmp_path, row)))
    assert [(p.code, p.line, p.field) for p in caught.value.problems] == [(code, 1, field)]


@pytest.mark.parametrize("option", ["system_prompt", "id_column"])
def test_a_batch_file_takes_no_options_of_columns(tmp_path: Path, option: str) -> None:
    source = source_of(write(tmp_path, BATCH), **{option: "x"})
    with pytest.raises(ConfigError, match=option.replace("_", " ")):
        settled(source)


def test_a_batch_file_takes_no_other_kind_than_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, BATCH)
    with pytest.raises(ConfigError, match=r"these ask /v1/chat/completions, and --kind is embedding"):
        settled(source_of(path, kind=Kind.EMBEDDING))
    for kind in (Kind.CHAT, Kind.EMBEDDING):
        row = BATCH | {"url": "/v1/embeddings", "body": {"input": "x"}}
        source = source_of(write(tmp_path, row, name="e.jsonl"), kind=kind)
        assert settled(source) == (source, None)


PROMPT = {"prompt": "hi"}


@pytest.mark.parametrize(
    ("row", "kind", "url"),
    [
        ({"method": "POST", "url": "/chat/completions", "body": {"messages": [USER]}}, Kind.CHAT,
         "/v1/chat/completions"),  # Azure
        ({"body": {"messages": [USER], "max_tokens": 3}}, Kind.CHAT, "/v1/chat/completions"),  # Together
        ({"body": PROMPT}, Kind.COMPLETION, "/v1/completions"),
        ({"url": None, "body": {"input": "hi"}}, Kind.EMBEDDING, "/v1/embeddings"),  # Mistral
    ],
)  # fmt: skip
def test_batch_files_of_other_services_are_taken_as_they_are(
    tmp_path: Path, row: dict[str, Any], kind: Kind, url: str
) -> None:
    path = write(tmp_path, {"custom_id": "0", **row}, {"custom_id": "1", **row})
    found = requests(take(tmp_path, source_of(path, kind=kind)))
    assert [(one.custom_id, one.url, one.body) for one in found] == [
        (custom_id, url, row["body"]) for custom_id in ("0", "1")
    ]


def test_rows_that_do_not_say_their_kind_are_asked_for_it(tmp_path: Path) -> None:
    path = write(tmp_path, {"custom_id": "0", "body": PROMPT})
    with pytest.raises(InputError, match=r"no url, and its body is no request of the kind chat \(--kind\)"):
        take(tmp_path, source_of(path))


def test_the_kind_that_the_user_gives_such_rows_tells_jobs_apart(tmp_path: Path) -> None:
    """Of rows that say theirs, it says nothing more."""
    body = {"messages": [USER], "input": "hi"}
    bare = write(tmp_path, {"custom_id": "0", "body": body})
    asked = [source_digest(source_of(bare, kind=kind)) for kind in (Kind.CHAT, Kind.EMBEDDING, Kind.RESPONSE)]
    assert len(set(asked)) == 3
    named = write(tmp_path, {"custom_id": "0", "url": "/v1/embeddings", "body": body}, name="named.jsonl")
    digests = [source_digest(source_of(named, kind=kind)) for kind in (Kind.CHAT, Kind.EMBEDDING)]
    assert digests[0] == digests[1]


def test_rows_without_messages_or_envelope_are_asked_for_their_prompt(tmp_path: Path) -> None:
    for path in (
        write(tmp_path, {"id": 1, "text": "hi"}),
        write(tmp_path, {"id": 1, "text": "hi", "messages": "hi"}, name="texts.jsonl"),
        table(tmp_path, {"id": [1], "text": ["hi"]}),
        table(tmp_path, {"id": [1], "text": ["hi"], "messages": ["[]"]}, "texts.parquet"),
    ):
        with pytest.raises(ConfigError, match=r"--prompt-column.*--messages.*: 'id', 'text'") as caught:
            settled(source_of(path))
        assert path in str(caught.value)


STRUCTS = [
    {"role": "user", "content": "hi", "tool_calls": None},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
]


@pytest.mark.parametrize("kind", [pyarrow.list_, pyarrow.large_list])
@pytest.mark.parametrize("column", ["messages", "prompt"])
def test_parquet_lists_of_structs_are_found_by_their_type(tmp_path: Path, column: str, kind: Any) -> None:
    inferred = pyarrow.array([STRUCTS, [USER]])
    lists = inferred.cast(kind(inferred.type.value_type))
    path = table(tmp_path, {"id": ["a", "b"], column: lists, "text": ["x", "y"]})
    said: list[str] = []
    ingested = take(tmp_path, source_of(path, id_column="id"), said)
    calls = {"role": "assistant", "tool_calls": [{"id": "1"}]}
    assert asked(ingested) == [("a", [USER, calls]), ("b", [USER])]
    assert f"the column {column!r}" in said[0]


TEXTS = pyarrow.map_(pyarrow.string(), pyarrow.string())


def test_parquet_lists_of_maps_are_messages_as_spark_writes_them(tmp_path: Path) -> None:
    maps = pyarrow.array([[], [[("role", "user"), ("content", "hi")]]], pyarrow.list_(TEXTS))
    path = table(tmp_path, {"id": ["a", "b"], "messages": maps})
    ingested = take(tmp_path, source_of(path, id_column="id"), skip_invalid=True)
    assert asked(ingested) == [("b", [{"role": "user", "content": "hi"}])]


def test_parquet_lists_of_maps_without_roles_are_no_messages(tmp_path: Path) -> None:
    path = table(tmp_path, {"messages": pyarrow.array([[[("a", "b")]]], pyarrow.list_(TEXTS))})
    with pytest.raises(ConfigError, match="say what becomes the prompt"):
        take(tmp_path, source_of(path))


def test_maps_of_parquet_are_objects_in_a_rows_fields(tmp_path: Path) -> None:
    kind = pyarrow.struct([("type", pyarrow.string())])
    parameters = pyarrow.struct([("properties", pyarrow.map_(pyarrow.string(), kind))])
    tools = pyarrow.array([[{"properties": [("city", {"type": "string"})]}]], pyarrow.list_(parameters))
    bias = pyarrow.array([[("5", 1.5)]], pyarrow.map_(pyarrow.string(), pyarrow.float16()))
    path = table(tmp_path, {"messages": [[USER]], "tools": tools, "logit_bias": bias})
    [request] = requests(take(tmp_path, source_of(path)))
    assert request.body["tools"] == [{"properties": {"city": {"type": "string"}}}]
    assert request.body["logit_bias"] == {"5": 1.5}


def test_a_map_with_a_key_twice_is_a_problem_of_its_row(tmp_path: Path) -> None:
    twice = pyarrow.array([[("5", "a"), ("5", "b")], [("5", "a")]], TEXTS)
    path = table(tmp_path, {"messages": [[USER], [USER]], "chat_template_kwargs": twice})
    ingested = take(tmp_path, source_of(path), skip_invalid=True)
    [[error]] = list(ingested.rejects())
    assert error.index == 0
    assert "a key of it twice" in (error.error_message or "")


def test_a_message_that_is_not_utf8_is_a_problem_of_its_row(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    structs = pyarrow.StructArray.from_arrays([pyarrow.array(["user", "user"]), texts], ["role", "content"])
    path = table(tmp_path, {"messages": pyarrow.ListArray.from_arrays([0, 1, 2], structs)})
    ingested = take(tmp_path, source_of(path), skip_invalid=True)
    assert asked(ingested) == [("row-0", [{"role": "user", "content": "a"}])]
    [[error]] = list(ingested.rejects())
    assert (error.index, error.error_code) == (1, "invalid_text")


@pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
def test_csv_holds_messages_as_json(tmp_path: Path, name: str) -> None:
    texts = [json.dumps([USER]), "plain", json.dumps([{"role": "user"}])]
    path = str(tmp_path / name)
    frame = pandas.DataFrame({"id": ["a", "b", "c"], "m": texts})
    frame.to_csv(path, index=False, sep="\t" if name == "in.tsv" else ",")
    source = source_of(path, messages_column="m", id_column="id")
    ingested = take(tmp_path, source, skip_invalid=True)
    assert asked(ingested) == [("a", [USER])]
    [errors] = list(ingested.rejects())
    assert [(e.custom_id, e.error_code) for e in errors] == [("b", "invalid_json"), ("c", "invalid_messages")]
    assert "[m[0].content]" in (errors[1].error_message or "")


def test_a_query_gives_messages_as_json(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute("create table t (id text, chat text)")
        connection.execute("insert into t values ('a', ?)", [json.dumps([USER])])
    connection.close()
    url = f"sqlite:///{tmp_path}/data.db"
    source = source_of(url, query="select * from t", messages_column="chat", id_column="id")
    assert asked(take(tmp_path, source)) == [("a", [USER])]


def test_the_first_file_with_a_row_says_it_for_all(tmp_path: Path) -> None:
    empty = write(tmp_path, name="0.jsonl")
    first = tmp_path / "1.jsonl.gz"
    first.write_bytes(gzip.compress(json.dumps({"messages": [USER]}).encode()))
    other = write(tmp_path, {"text": "hi"}, name="2.jsonl")
    with pytest.raises(InputError) as caught:
        take(tmp_path, source_of([empty, str(first), other]))
    assert [(p.code, p.file, p.line) for p in caught.value.problems] == [("missing_column", other, 1)]


@pytest.mark.parametrize("columns", [{"messages": pyarrow.array([], pyarrow.null())}, {"text": []}])
def test_parquet_files_without_rows_say_nothing(tmp_path: Path, columns: dict[str, Any]) -> None:
    empty = table(tmp_path, columns, "0.parquet")
    with pytest.raises(InputError) as caught:
        settled(source_of(empty))
    assert [(p.code, p.file) for p in caught.value.problems] == [("empty_input", empty)]
    full = table(tmp_path, {"messages": [[USER]]}, "1.parquet")
    found, _ = settled(source_of([empty, full]))
    assert isinstance(found, Rows)
    assert found.shape.messages_column == "messages"


def test_messages_are_for_chat(tmp_path: Path) -> None:
    source = source_of(write(tmp_path, {"messages": [USER]}), kind=Kind.COMPLETION)
    with pytest.raises(ConfigError, match="chat or classification only"):
        settled(source)
