"""CSV, Parquet, JSON rows and DataFrames into requests."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import pyarrow
import pytest
from pyarrow import parquet

from dray.errors import InputError
from dray.kinds import Kind
from dray.requests.reading import tables
from dray.requests.reading.readers import ReadLimits, files_of, read_rows
from dray.requests.sources import RowDefaults, Rows
from dray.requests.validate import BadRow
from tests.support.sources import source_of
from tests.unit.requests.taking import asked, problems, prompts, take

pytestmark = pytest.mark.unit


def put(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


CSV = 'id,text\n1,"hello, ""you"""\n2,"two\nlines"\n\n3,ünï\n'.encode()
EXPECTED = [("row-0", 'hello, "you"'), ("row-1", "two\nlines"), ("row-2", "ünï")]


GZIPPED = gzip.compress(CSV, mtime=0)  # the case has the same name in every process


@pytest.mark.parametrize("content", [CSV, b"\xef\xbb\xbf" + CSV, CSV.rstrip(b"\n"), GZIPPED])
def test_csv(tmp_path: Path, content: bytes) -> None:
    name = "in.csv.gz" if content[:1] == b"\x1f" else "in.csv"
    assert prompts(tmp_path, put(tmp_path, name, content), prompt_column="text") == EXPECTED


@pytest.mark.parametrize("blank", [b"\n", b"\r\n\n", b"\xef\xbb\xbf\r\n"])
def test_the_header_is_the_first_line_that_is_not_blank(tmp_path: Path, blank: bytes) -> None:
    first = put(tmp_path, "1.csv", b"text\nalpha\n")
    second = put(tmp_path, "2.csv", blank + b"text\r\nbeta\r\n\r\ngamma\r\n")
    found = prompts(tmp_path, first, second, prompt_column="text")
    assert found == [("row-0", "alpha"), ("row-1", "beta"), ("row-2", "gamma")]


def test_problems_below_blank_lines_name_their_line(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, put(tmp_path, "1.csv", b"\n\nid;text\n1;a\n"), prompt_column="text")
    assert "--delimiter ';'" in problem.message
    [problem] = problems(tmp_path, put(tmp_path, "2.csv", b"\n\ntext\nx\ny,z\n"), prompt_column="text")
    assert problem.line == 5


@pytest.mark.parametrize(
    ("name", "start", "delimiter"),
    [
        ("in.csv", b"sep=;\n", None),
        ("in.csv", b"sep=;\n", ";"),
        ("in.csv", b"\xef\xbb\xbfSEP=;\r\n\r\n", None),
        ("in.tsv", b"sep=;\n", None),
    ],
)
def test_a_first_line_for_excel_says_the_delimiter(
    tmp_path: Path, name: str, start: bytes, delimiter: str | None
) -> None:
    path = put(tmp_path, name, start + b'id;text\n1;"a\nb"\n2\n')
    source = source_of(path, kind=Kind.COMPLETION, prompt_column="text", id_column="id", delimiter=delimiter)
    ingested = take(tmp_path, source, skip_invalid=True)
    assert asked(ingested) == [("1", "a\nb")]
    [[error]] = list(ingested.rejects())
    lines_above = len(start.splitlines())
    assert f"{path}:{lines_above + 4}: " in (error.error_message or "")


RAW = b'id\ttext\n1\t"unclosed start\n2\tsecond\n3\tends here"\n4\tlast\n'
"""Four rows, as databases write them: a quote is a character as any other. In CSV they are two."""


def test_quotes_are_plain_characters_where_the_user_says_so(tmp_path: Path) -> None:
    path = put(tmp_path, "in.tsv", RAW + b'5\t"Great" she said\n')
    found = prompts(tmp_path, path, prompt_column="text", quoting="none")
    assert [text for _, text in found] == [
        '"unclosed start', "second", 'ends here"', "last", '"Great" she said',
    ]  # fmt: skip


def test_quotes_hold_values_of_several_lines_between_tabs_where_the_user_says_so(tmp_path: Path) -> None:
    found = prompts(tmp_path, put(tmp_path, "in.tsv", RAW), prompt_column="text", quoting="csv")
    assert [text for _, text in found] == ["unclosed start\n2\tsecond\n3\tends here", "last"]


@pytest.mark.parametrize("name", ["in.tsv", "in.csv"])
def test_a_quoted_value_of_several_lines_between_tabs_is_refused_with_both_ways_on(
    tmp_path: Path, name: str
) -> None:
    path = put(tmp_path, name, RAW)
    [problem] = problems(tmp_path, path, prompt_column="text", delimiter="tab")
    assert (problem.code, problem.file, problem.line) == ("invalid_csv", path, 2)
    assert "--quoting none" in problem.message
    assert "--quoting csv" in problem.message


def test_a_quote_that_is_closed_too_soon_is_refused_with_the_way_on(tmp_path: Path) -> None:
    path = put(tmp_path, "in.tsv", b'id\ttext\n1\t"Great" she said\n')
    [problem] = problems(tmp_path, path, prompt_column="text")
    assert problem.message.endswith("say --quoting none")


def test_a_long_line_hides_no_row_where_quotes_are_plain_characters(tmp_path: Path) -> None:
    path = put(tmp_path, "in.tsv", b'text\n"' + b"a" * 200 + b"\nb\n")
    source, limits = source_of(path, prompt_column="text", quoting="none"), ReadLimits(line_bytes=100)
    assert take(tmp_path, source, limits=limits, skip_invalid=True).requests == 1


def test_a_first_line_for_excel_and_another_delimiter_are_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "in.csv", b"sep=;\nid;text\n1;a\n")
    [problem] = problems(tmp_path, path, prompt_column="text", delimiter="|")
    assert (problem.code, problem.line) == ("invalid_csv", 1)
    assert "';'" in problem.message
    assert "--delimiter says '|'" in problem.message


def test_csv_with_crlf_keeps_line_ends_inside_quotes_plain(tmp_path: Path) -> None:
    path = put(tmp_path, "in.csv", CSV.replace(b"\n", b"\r\n"))
    assert prompts(tmp_path, path, prompt_column="text") == EXPECTED


def test_tsv_with_template_and_ids(tmp_path: Path) -> None:
    path = put(tmp_path, "in.tsv", b"id\ta\tb\nx\t1\t2\n")
    assert prompts(tmp_path, path, template="{b}-{a}", id_column="id") == [("x", "2-1")]


def test_csv_problems_name_the_line(tmp_path: Path) -> None:
    content = b'id,text\n1,a\n1,b\n2,"x\ny"\n3\n4,\xff\n5,n\0l\n6,' + b"x" * 300 + b"\n,empty\n"
    path = put(tmp_path, "in.csv", content)
    found = problems(tmp_path, path, prompt_column="text", id_column="id", limits=ReadLimits(line_bytes=200))
    assert [(p.code, p.line, p.field) for p in found] == [
        ("duplicate_custom_id", 3, "custom_id"),
        ("invalid_csv", 6, None),
        ("invalid_text", 7, "text"),
        ("invalid_text", 8, "text"),
        ("line_too_long", 9, None),
        ("missing_custom_id", 10, "id"),
    ]


STRAY_QUOTES = [
    (b'1,a\n2,"b\n3,c\n4,d\n', 3),  # never closed
    (b'1,a\n2,b\n3,"say "hi\n4,d" x\n', 4),  # what follows is the inside of a text, with two values
    (b'1,a\n2,"b\n3,"c"\n4,d\n', 3),  # closed by the quote of another row
    (b'1,a\n2,b "c" d\n3,"d"\n4,"', 5),
]


@pytest.mark.parametrize(("rows", "line"), STRAY_QUOTES)
@pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
@pytest.mark.parametrize("skip_invalid", [False, True])
def test_a_stray_quote_ends_the_file_with_the_line_of_its_row(
    tmp_path: Path, name: str, rows: bytes, line: int, skip_invalid: bool
) -> None:
    content = b"id,text\n" + rows
    path = put(tmp_path, name, content.replace(b",", b"\t") if name == "in.tsv" else content)
    source = source_of(path, kind=Kind.COMPLETION, prompt_column="text")
    with pytest.raises(InputError) as caught:
        take(tmp_path, source, skip_invalid=skip_invalid)
    [problem] = caught.value.problems
    assert (problem.code, problem.file, problem.line) == ("invalid_csv", path, line)
    assert "no row after it" in problem.message


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        (b"id,text\r1,a\r2,b\r", "invalid_csv", "CRLF"),
        (b'id,"text\n1,a\n', "invalid_csv", "no row after it"),
        (b"id," + b"x" * 300 + b"\n1,a\n", "line_too_long", "longer than 200 bytes; ask for less"),
    ],
)
def test_a_csv_header_that_cannot_be_read_is_a_problem_of_the_file(
    tmp_path: Path, content: bytes, code: str, told: str
) -> None:
    path = put(tmp_path, "in.csv", content)
    [problem] = problems(tmp_path, path, prompt_column="text", limits=ReadLimits(line_bytes=200))
    assert (problem.code, problem.file, problem.line) == (code, path, 1)
    assert told in problem.message


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"prompt_column": "nope"}, "missing_column", "nope"),
        ({"template": "{id} {nope}"}, "unknown_template_column", "nope"),
        ({"prompt_column": "text", "id_column": "nope"}, "missing_column", "nope"),
    ],
)
def test_missing_columns_name_those_that_are_there(
    tmp_path: Path, name: str, options: dict[str, Any], code: str, field: str
) -> None:
    path = put(tmp_path, name, CSV)
    if name == "in.parquet":
        parquet.write_table(pyarrow.table({"id": [1], "text": ["x"]}), path)
    [problem] = problems(tmp_path, path, **options)
    assert (problem.code, problem.file, problem.field) == (code, path, field)
    assert "'id', 'text'" in problem.message


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"id, text", "did you mean ' text'?"),
        (b",Text", "did you mean 'Text'? the columns are: '', 'Text'"),  # pandas' index has no name
        (b"Unnamed: 0,Text", "'Unnamed: 0', 'Text'"),
        (b"id,t\xe9xt", "the first line is not UTF-8; convert it, for example with iconv"),
    ],
)
def test_headers_as_other_programs_write_them(tmp_path: Path, header: bytes, told: str) -> None:
    path = put(tmp_path, "in.csv", header + b"\n1,x\n")
    [problem] = problems(tmp_path, path, prompt_column="text")
    assert told in problem.message


@pytest.mark.parametrize("name", ["in.csv", "in.parquet", "in.jsonl"])
def test_a_missing_column_is_told_with_the_one_that_is_meant(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, name, b"id,Review Text\n1,x\n")
    if name == "in.parquet":
        parquet.write_table(pyarrow.table({"id": [1], "Review Text": ["x"]}), path)
    elif name == "in.jsonl":
        put(tmp_path, name, b'{"id": 1, "Review Text": "x"}\n')
    [problem] = problems(tmp_path, path, prompt_column="review_text")
    assert problem.message == (
        "there is no column 'review_text'; did you mean 'Review Text'? the columns are: 'id', 'Review Text'"
    )


def test_columns_of_parquet_are_listed_whatever_their_names(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"1": [1], "What is it? Say all.": ["x"]}), tmp_path / "in.parquet")
    [problem] = problems(tmp_path, str(tmp_path / "in.parquet"), prompt_column="text")
    assert problem.message.endswith("the columns are: '1', 'What is it? Say all.'")


def test_decimals_have_no_exponent_in_prompts(tmp_path: Path) -> None:
    path = str(tmp_path / "in.parquet")
    prices = [Decimal("0.0000000000"), Decimal("-0.0000000120")]
    parquet.write_table(pyarrow.table({"price": prices}), path)
    assert prompts(tmp_path, path, prompt_column="price") == [
        ("row-0", "0.0000000000"),
        ("row-1", "-0.0000000120"),
    ]


def test_whole_numbers_of_json_beyond_64_bits_are_refused(tmp_path: Path) -> None:
    """The parser has rounded them. Floats are as large as they say."""
    path = tmp_path / "in.jsonl"
    values = ["12345678901234567890123", "-9223372036854775809", str(2**64 - 1), str(-(2**63)), "1.5"]
    values += ["1e+20", "-1e+300"]
    path.write_text("".join(f'{{"p": {value}, "unused": 1e30}}\n' for value in values))
    source = source_of([str(path)], kind=Kind.COMPLETION, template="<{p}>")
    ingested = take(tmp_path, source, skip_invalid=True)
    assert [text for _, text in asked(ingested)] == [f"<{value}>" for value in values[2:]]
    [errors] = list(ingested.rejects())
    assert [(error.index, error.error_code) for error in errors] == [
        (0, "number_too_large"),
        (1, "number_too_large"),
    ]
    told = "the column 'p' holds a number of more than 64 bits in this row; write it as text"
    assert (errors[0].error_message or "").endswith(told)


@pytest.mark.parametrize("bad", ["\0", "\ud800", "\0\ud800"])
@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl", "in.parquet"])
def test_a_column_that_no_row_is_made_of_may_hold_any_text(tmp_path: Path, name: str, bad: str) -> None:
    path, html = tmp_path / name, f"<p>{bad}"
    raw = html.encode("utf-8", "surrogatepass")
    if name == "in.jsonl":
        path.write_text(json.dumps({"id": "a", "text": "fine", "html": [html], html: 1}))
    elif name == "in.parquet":
        pages = pyarrow.array([raw], pyarrow.binary()).view(pyarrow.string())
        parquet.write_table(pyarrow.table({"id": ["a"], "text": ["fine"], "html": pages}), path)
    else:
        rows = b"id,text,html\na,fine," + raw
        path.write_bytes(rows.replace(b",", b"\t") if name == "in.tsv" else rows)
    assert prompts(tmp_path, str(path), prompt_column="text", id_column="id") == [("a", "fine")]


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_a_bad_text_of_json_is_told_where_a_row_is_made_of_it(tmp_path: Path, bad: str) -> None:
    """Of a prompt, a kept column, a field that goes into the request, and messages."""
    path = tmp_path / "in.jsonl"
    message = {"role": "user", "content": "x"}
    row: dict[str, Any] = {"id": "a", "p": "x", "k": [{"n": "x"}], "messages": [message], "stop": ["x"]}
    bad_rows = [
        row | {"p": bad},
        row | {"k": [{"n": bad}]},
        row | {"messages": [message | {bad: 1}]},
        row | {"stop": [bad]},
    ]
    path.write_text(
        "".join(json.dumps(one | {"id": str(at)}) + "\n" for at, one in enumerate([*bad_rows, row]))
    )
    shapes: list[tuple[dict[str, Any], list[int]]] = [
        ({"prompt_column": "p", "keep_columns": ("k",)}, [0, 1]),
        ({}, [2, 3]),
    ]
    for options, expected in shapes:
        source = source_of(str(path), id_column="id", **options)
        ingested = take(tmp_path, source, skip_invalid=True)
        errors = [error for page in ingested.rejects() for error in page]
        assert [(e.index, e.custom_id, e.error_code) for e in errors] == [
            (index, str(index), "invalid_text") for index in expected
        ]
        assert ingested.requests == 3


def test_bad_texts_leave_the_numbers_of_their_rows_alone(tmp_path: Path) -> None:
    """Another parser reads these rows, which has whole numbers of any size."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"n": 9999999999999999999999, "x": "\\ud800"}\n{"n": 1e20, "x": "\\ud800"}\n')
    source = source_of(str(path), kind=Kind.COMPLETION, prompt_column="n")
    ingested = take(tmp_path, source, skip_invalid=True)
    assert asked(ingested) == [("row-1", "1e+20")]
    [[error]] = list(ingested.rejects())
    assert error.error_code == "number_too_large"


def test_json_rows(tmp_path: Path) -> None:
    path = put(tmp_path, "in.jsonl", b'{"text": "a", "n": 1}\n\n{"text": "b", "n": 2.5}\n')
    assert prompts(tmp_path, path, template="{text}{n}") == [("row-0", "a1"), ("row-1", "b2.5")]
    folder = tmp_path / "other"
    folder.mkdir()
    found = problems(folder, put(tmp_path, "bad.jsonl", b'{"text": "a"}\n{"n": 1}\n[]'), prompt_column="text")
    assert [(p.code, p.line, p.field) for p in found] == [
        ("missing_column", 2, "text"),
        ("not_an_object", 3, None),
    ]


def test_parquet_reads_the_columns_it_needs(tmp_path: Path) -> None:
    path = str(tmp_path / "in.parquet")
    table = pyarrow.table({"text": ["a", None, "c"], "n": [1, 2, 3], "blob": [b"\xff", b"", b""]})
    parquet.write_table(table, path, row_group_size=2)
    ingested = take(
        tmp_path,
        source_of(path, kind=Kind.COMPLETION, template="{text}", id_column="n"),
        skip_invalid=True,
        defaults=RowDefaults(sampling={"max_tokens": 3}),
    )
    assert asked(ingested) == [("1", "a"), ("3", "c")]
    [[error]] = list(ingested.rejects())
    assert (error.index, error.custom_id, error.error_code) == (1, "2", "missing_value")


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, put(tmp_path, "in.parquet", b"PAR1 nonsense"), prompt_column="x")
    assert problem.code == "invalid_parquet"


@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_parquet_texts_that_are_not_utf8_are_problems_of_their_rows(tmp_path: Path, kind: str) -> None:
    plain = pyarrow.array([b"a", b"b \xff", None, b"d"], pyarrow.binary()).view(pyarrow.string())
    texts = plain if kind == "string" else plain.cast(pyarrow.large_string())
    path = str(tmp_path / "in.parquet")
    parquet.write_table(pyarrow.table({"id": ["p", "q", "r", "s"], "text": texts}), path)
    shape = {"kind": Kind.COMPLETION, "prompt_column": "text", "id_column": "id"}
    ingested = take(tmp_path, source_of(path, **shape), skip_invalid=True)
    assert asked(ingested) == [("p", "a"), ("s", "d")]
    [errors] = list(ingested.rejects())
    assert [(e.custom_id, e.error_code) for e in errors] == [("q", "invalid_text"), ("r", "missing_value")]


def test_a_nested_parquet_value_that_is_not_utf8_is_no_text(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    lists = pyarrow.ListArray.from_arrays([0, 1, 2], texts)
    path = str(tmp_path / "in.parquet")
    parquet.write_table(pyarrow.table({"text": lists}), path)
    found = problems(tmp_path, path, prompt_column="text")
    assert [(p.code, p.line) for p in found] == [("invalid_value", 1), ("invalid_value", 2)]


def test_parquet_values_that_python_cannot_hold_are_problems_of_their_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "in.parquet")
    times = pyarrow.array([10**15, 0], type=pyarrow.timestamp("s"))
    parquet.write_table(pyarrow.table({"t": times, "text": ["a", "b"]}), path)
    source = source_of(path, kind=Kind.COMPLETION, template="{t} {text}")
    ingested = take(tmp_path, source, skip_invalid=True)
    assert asked(ingested) == [("row-1", "1970-01-01 00:00:00 b")]
    [[error]] = list(ingested.rejects())
    assert (error.index, error.error_code) == (0, "invalid_value")
    assert "outside the years 1 to 9999" in (error.error_message or "")
    zone = pyarrow.array([0], type=pyarrow.timestamp("s", tz="Mars/Phobos"))
    parquet.write_table(pyarrow.table({"t": zone}), path)
    [problem] = problems(tmp_path / "zone", path, prompt_column="t")
    assert "time zone is not known" in problem.message


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal("12.50"), "12.50"),
        (Decimal("0.0000000000"), "0.0000000000"),
        (date(2020, 2, 1), "2020-02-01"),
        (datetime(2020, 2, 1, 3), "2020-02-01 03:00:00"),
        (7, "7"),
        (7.0, "7"),
    ],
)
def test_ids_with_one_spelling_are_taken(tmp_path: Path, value: Any, name: str) -> None:
    kind = pyarrow.uuid() if isinstance(value, UUID) else None
    ids = pyarrow.array([value.bytes if isinstance(value, UUID) else value], type=kind)
    path = str(tmp_path / "in.parquet")
    parquet.write_table(pyarrow.table({"id": ids, "text": ["a"]}), path)
    assert prompts(tmp_path, path, prompt_column="text", id_column="id") == [(name, "a")]


@pytest.mark.parametrize(
    ("value", "told"), [(1.5, "a JSON number"), (True, "a JSON boolean"), (b"x", "a bytes")]
)
def test_other_ids_are_called_what_they_are(tmp_path: Path, value: object, told: str) -> None:
    path = str(tmp_path / "in.parquet")
    parquet.write_table(pyarrow.table({"id": [value], "text": ["a"]}), path)
    [problem] = problems(tmp_path, path, prompt_column="text", id_column="id")
    assert (problem.code, problem.line) == ("invalid_custom_id", 1)
    assert told in problem.message


def test_a_parquet_file_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pyarrow reads ahead (``pre_buffer``) it keeps to the end: as many bytes as the file has."""
    monkeypatch.setattr(tables, "BATCH_BYTES", 1 << 20)
    path, image = tmp_path / "images.parquet", bytes(range(256)) * 1024
    rows = pyarrow.table(
        {"q": ["what?"] * 200, "image": [image[number:] + image[:number] for number in range(200)]}
    )
    parquet.write_table(rows, path, row_group_size=10, compression="none", use_dictionary=False)
    source = source_of(str(path), prompt_column="q", image_column="image")
    tracemalloc.start()
    try:
        read = sum(
            row.envelope is not None
            for row in read_rows(source, files_of(source), RowDefaults(), ReadLimits())
        )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == 200
    assert most < path.stat().st_size / 2


def test_columns_that_are_not_read_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of small texts is not cut for images beside them."""
    path, asked_for = tmp_path / "wide.parquet", list[int]()
    rows: dict[str, Any] = {"q": ["what?"] * 100, "chat": [[{"role": "user", "content": "x" * 1000}]] * 100}
    images = {f"image{number}": [b"i" * 100_000] * 100 for number in range(5)}
    parquet.write_table(pyarrow.table(rows | images), path, use_dictionary=False)
    batches = parquet.ParquetFile.iter_batches

    def counted(file: parquet.ParquetFile, batch_size: int, columns: list[str]) -> Any:
        asked_for.append(batch_size)
        return batches(file, batch_size, columns=columns)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    monkeypatch.setattr(tables, "BATCH_BYTES", 50_000)
    for template in ("{q}", "{q}{chat}", "{q}{image1}"):
        source = source_of(str(path), template=template)
        list(read_rows(source, files_of(source), RowDefaults(), ReadLimits()))
    texts, chats, image = asked_for
    assert texts == tables.BATCH_ROWS
    assert 30 < chats < 60  # of about a kilobyte each
    assert image == 1


class _CountedFile(io.FileIO):
    """Notes how many bytes each read gave."""

    def __init__(self, path: Path, reads: list[int]) -> None:
        super().__init__(path)
        self._reads = reads

    def readinto(self, buffer: Any) -> int | None:
        found = super().readinto(buffer)
        self._reads.append(found or 0)
        return found


def test_of_a_large_row_group_the_first_rows_alone_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of 32 MB, as pandas writes it: one for a million rows."""
    path, reads = tmp_path / "images.parquet", list[int]()
    images = [number.to_bytes(4, "big") * 1024 for number in range(8192)]
    table = pyarrow.table({"q": ["what?"] * len(images), "image": images})
    parquet.write_table(table, path, compression="none", use_dictionary=False)
    assert parquet.read_metadata(path).num_row_groups == 1

    @contextmanager
    def counted(uri: str, **_: object) -> Iterator[IO[bytes]]:
        with io.BufferedReader(_CountedFile(Path(uri), reads)) as file:
            yield file

    monkeypatch.setattr(tables, "open_seekable", counted)
    source = source_of(str(path), prompt_column="q", image_column="image")
    assert isinstance(source, Rows)
    rows = tables.file_rows(str(path), source, 1 << 24, None)
    first = next(rows)[1]
    assert isinstance(first, dict)
    assert first["image"] == images[0]
    assert sum(reads) < 8 << 20  # 1,024 rows and a buffer
    assert [row["image"] for _, row in rows if isinstance(row, dict)] == images[1:]
    assert sum(reads) < path.stat().st_size + (1 << 20)  # and nothing is read twice


def test_texts_that_repeat_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file holds such a text once: here 200 kB stand for 400 MB."""
    path, document = tmp_path / "repeated.parquet", "x" * 200_000
    schema = pyarrow.schema([("document", pyarrow.string()), ("q", pyarrow.string())])
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, 2000, 100):  # as writers do: the dictionary stays below its limit
            questions = [f"question {number}" for number in range(start, start + 100)]
            part = pyarrow.Table.from_pydict({"document": [document] * 100, "q": questions}, schema=schema)
            writer.write_batch(part.to_batches()[0], row_group_size=2000)
    assert path.stat().st_size < 2 * len(document)
    source = source_of(str(path), template="{document} {q}")
    rows = read_rows(source, files_of(source), RowDefaults(), ReadLimits())
    before = pyarrow.total_allocated_bytes()
    assert next(rows).envelope is not None
    assert pyarrow.total_allocated_bytes() - before < 100 << 20


def test_values_have_the_limit_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    talk = [{"role": "user", "content": "y" * 90}]
    parquet.write_table(
        pyarrow.table({"q": ["a", "b" * 60, "é" * 35, "d"], "m": [talk[:0], talk[:0], talk[:0], talk]}), path
    )
    source = source_of(str(path), template="{q}{m}")
    assert isinstance(source, Rows)
    found = [row for _, row in tables.file_rows(str(path), source, 64, None)]
    codes = [row.code if isinstance(row, BadRow) else None for row in found]
    assert codes == [None, None, "line_too_long", "line_too_long"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            pyarrow.array([0.1, 1e20, None, float("nan"), 16777216.0], pyarrow.float32()),
            ["0.1", "1e+20", None, None, "16777216.0"],
        ),
        (pyarrow.array([0.1, None, 3], pyarrow.float32()).cast(pyarrow.float16()), ["0.1", None, "3.0"]),
        (
            pyarrow.array([1_000_000_001, None, 1_500_000_000, 2_000_000_000], pyarrow.time64("ns")),
            ["00:00:01.000000001", None, "00:00:01.500000", "00:00:02"],
        ),
    ],
)
def test_numbers_and_times_are_written_in_their_own_precision(
    tmp_path: Path, values: pyarrow.Array[Any], expected: list[str | None]
) -> None:
    path = tmp_path / "values.parquet"
    parquet.write_table(pyarrow.table({"n": values}), path)
    source = source_of(str(path), template="{n}")
    rows = list(read_rows(source, files_of(source), RowDefaults(), ReadLimits()))
    asked = [row.envelope and row.envelope.body["messages"][0]["content"] for row in rows]
    assert asked == expected
    codes = [None if one else "missing_value" for one in expected]
    assert [row.bad and row.bad.code for row in rows] == codes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("q\n1\n{long}\n2\n", ["1", "line_too_long", "2"]),
        ('q\n1\n"{long}"\n2\n', ["1", "line_too_long", "2"]),
        ('q\n1\n"a\n{long}\nb"\n2\n', ["1", "line_too_long", "2"]),  # the record ends where its quote does
        ('q\n1\n"{long}\nrest of it\nend"\n2\n', ["1"]),
        ('q\n1\n"a\n{long}"\n2\n', ["1"]),
        ("q\n1\n\0\n", ["1", "\0"]),
    ],
)
def test_what_follows_a_line_that_is_too_long_is_no_row_of_its_own(
    tmp_path: Path, text: str, found: list[str]
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text.format(long="x" * 100))
    source = source_of(str(path), prompt_column="q")
    assert isinstance(source, Rows)
    taken: list[str] = []
    ended = None
    try:
        for _, row in tables.file_rows(str(path), source, 60, None):
            taken.append(row.code if isinstance(row, BadRow) else row["q"])
    except InputError as error:
        ended = error.problems[0]
    assert taken == found
    assert (ended is not None) == (found == ["1"])
    if ended is not None:
        assert (ended.code, "no row after it can be told" in ended.message) == ("line_too_long", True)
