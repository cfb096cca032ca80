"""Columns of the input that stand beside the answers: what ingest keeps of them, and what the files say."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy
import orjson
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from dray.errors import ConfigError, InputError, JobFailedError, JobPausedError, Problem
from dray.kinds import Kind
from dray.requests.ingest import Ingested, ingest
from dray.requests.model import Outcome
from dray.requests.outputs import kept as keeping
from dray.requests.outputs.files import OutputFormat, write_outputs
from dray.requests.outputs.kept import Kept, KeptColumn
from dray.storage.files import AtomicFile
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(-1e18, 1e18),
) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from("ab"), scalars)
columns = st.sampled_from([st.integers(-9, 9), st.floats(-9, 9), st.booleans(), scalars, values]).flatmap(
    lambda one: st.lists(one, min_size=1, max_size=12)
)


def take(folder: Path, *inputs: Path, keep: list[str], **options: Any) -> Ingested:
    source = source_of(
        [str(one) for one in inputs], kind=Kind.COMPLETION, prompt_column="q", keep_columns=keep
    )
    return ingest(source, spool_uri=str(folder / "job" / "spool.jsonl"), **options)


def problems(folder: Path, *inputs: Path, keep: list[str]) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        take(folder, *inputs, keep=keep)
    assert list(folder.glob("job/*")) == []
    return list(caught.value.problems)


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    return path


def outcomes(indexes: list[int]) -> list[Outcome]:
    """Answers, and each third row an error row."""
    return [
        Outcome(one, None, error_code="poison", error_message="m")
        if one % 3 == 2
        else Outcome(one, None, b'{"id":"x"}')
        for one in indexes
    ]


def written(
    folder: Path, kept: Kept | None, pages: list[list[Outcome]]
) -> tuple[dict[int, Any], pyarrow.Table]:
    """The row of each line by its index, and both tables of Parquet as one, in the order of the index."""
    write_outputs(pages, directory=str(folder), kept=kept)
    write_outputs(pages, directory=str(folder), kept=kept, format="parquet")
    found = [json.loads(line) for stem in ("output", "errors") for line in _lines(folder / f"{stem}.jsonl")]
    rows = {int(one["id"].removeprefix("batch_req_")): one["row"] for one in found}
    names = ["index", *(rows[min(rows)] if rows else ())]
    tables = [parquet.read_table(folder / f"{stem}.parquet", columns=names) for stem in ("output", "errors")]
    return rows, pyarrow.concat_tables(tables).sort_by("index")


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


@given(columns, columns, st.data())
def test_the_files_hold_what_the_input_holds(a: list[Any], b: list[Any], data: st.DataObject) -> None:
    table = [{"q": "x", "one": one, "two": two} for one, two in zip(a, b, strict=False)]
    there = data.draw(
        st.lists(st.sampled_from(range(len(table))), unique=True).map(sorted)
    )  # not all are done
    size = data.draw(st.integers(1, 5))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = take(folder, lines(folder / "in.jsonl", table), keep=["one", "two"]).kept
        pages = [outcomes(there[start : start + size]) for start in range(0, len(there), size)]
        rows, read = written(folder / "out", kept, pages)
        assert rows == {one: {"one": table[one]["one"], "two": table[one]["two"]} for one in there}
        assert kept is not None
        for column in kept.columns if there else ():
            found = read[column.name].to_pylist()
            if column.type == "json":
                found = [value if value is None else orjson.loads(value) for value in found]
            assert found == [table[one][column.name] for one in there], column


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, None, 2], "integer"),
        ([2**53 + 1, 1], "integer"),
        ([1, 0.5], "number"),
        ([2**53 + 1, 0.5], "json"),
        ([2**63], "json"),
        ([True, 1], "json"),
        ([True, None], "boolean"),
        (["a", 1], "json"),
        ([None], "text"),
        ([[1]], "json"),
    ],
)
def test_a_column_is_of_the_narrowest_type_that_loses_nothing(
    tmp_path: Path, values: list[Any], type_: str
) -> None:
    file = lines(tmp_path / "in.jsonl", [{"q": "x", "a": value} for value in values])
    kept = take(tmp_path, file, keep=["a"]).kept
    assert kept is not None
    assert [column.type for column in kept.columns] == [type_]


def test_values_of_parquet_are_written_as_text_where_json_has_no_such_type(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 27, 8, tzinfo=UTC)
    given: dict[str, Any] = {
        "q": ["x"],
        "day": [date(2026, 11, 27)],
        "at": [moment],
        "price": [Decimal("0.0000000001")],
        "far": [float("inf")],
        "gone": [float("nan")],
        "who": [UUID(int=1).hex],
        "of": [[{"day": date(2026, 11, 27), "price": Decimal("1.50")}]],
        "narrow": pyarrow.array([0.1], pyarrow.float32()),
    }
    parquet.write_table(pyarrow.table(given), tmp_path / "in.parquet")
    names = list(given)[1:]
    kept = take(tmp_path, tmp_path / "in.parquet", keep=names).kept
    rows, read = written(tmp_path / "out", kept, [outcomes([0])])
    assert rows[0] == {
        "day": "2026-11-27",
        "at": "2026-11-27T08:00:00+00:00",
        "price": "0.0000000001",
        "far": "inf",
        "gone": None,
        "who": UUID(int=1).hex,
        "of": [{"day": "2026-11-27", "price": "1.50"}],
        "narrow": 0.1,
    }
    assert read["narrow"].to_pylist() == [0.1]


def test_infinities_stay_numbers_in_tables(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"q": ["x", "y", "z"], "a": [float("nan"), float("-inf"), 1e308]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    kept = take(tmp_path, tmp_path / "in.parquet", keep=["a"]).kept
    rows, read = written(tmp_path / "out", kept, [outcomes([0, 1, 2])])
    assert rows == {0: {"a": None}, 1: {"a": "-inf"}, 2: {"a": 1e308}}
    assert read["a"].type == pyarrow.float64()
    assert read["a"].to_pylist() == [None, float("-inf"), 1e308]


_HALF = pyarrow.float16()
_SINGLE = pyarrow.float32()


@pytest.mark.parametrize("kind", [_SINGLE, _HALF])
@pytest.mark.parametrize(
    ("nest", "type_of"),
    [
        (lambda one: [one, None, 1.5], pyarrow.list_),
        (lambda one: [one, None, 1.5], pyarrow.large_list),
        (lambda one: [one, None, 1.5], lambda kind: pyarrow.list_(kind, 3)),
        (
            lambda one: {"x": one, "s": "0.1"},
            lambda kind: pyarrow.struct([("x", kind), ("s", pyarrow.string())]),
        ),
        (
            lambda one: [{"x": [one]}],
            lambda kind: pyarrow.list_(pyarrow.struct([("x", pyarrow.list_(kind))])),
        ),
    ],
)
def test_numbers_in_lists_and_objects_are_written_in_their_own_precision(
    tmp_path: Path, kind: pyarrow.DataType, nest: Callable[[Any], Any], type_of: Callable[[Any], Any]
) -> None:
    """An embedding's 0.1 is no 0.10000000149011612."""
    values = [nest(numpy.float16(one) if kind == _HALF else one) for one in (0.1, float("inf"))]
    table = {"q": ["x", "y", "z"], "a": pyarrow.array([values[0], None, values[1]], type_of(kind))}
    parquet.write_table(pyarrow.table(table), tmp_path / "in.parquet")
    kept = take(tmp_path, tmp_path / "in.parquet", keep=["a"]).kept
    rows, _ = written(tmp_path / "out", kept, [outcomes([0, 1, 2])])
    assert rows == {0: {"a": nest(0.1)}, 1: {"a": None}, 2: {"a": nest("inf")}}


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ('{"id":123456789012345678901234}', False),
        ('[["x",1.5,{"v":[-99999999999999999999,1]}]]', False),
        ('{"id":[18446744073709551615,-9223372036854775808,"123456789012345678901234",1e30,null]}', True),
        ("[0.12345678901234567890123]", True),
    ],
)
def test_whole_numbers_beyond_64_bits_are_refused_wherever_they_stand(
    tmp_path: Path, value: str, taken: bool
) -> None:
    """Else they would be rounded."""
    (tmp_path / "in.jsonl").write_text(f'{{"q":"x","a":{value},"other":[99999999999999999999]}}\n')
    if taken:
        kept = take(tmp_path, tmp_path / "in.jsonl", keep=["a"]).kept
        rows, _ = written(tmp_path / "out", kept, [outcomes([0])])
        assert rows == {0: {"a": json.loads(value)}}
        return
    [bad] = problems(tmp_path, tmp_path / "in.jsonl", keep=["a"])
    assert (bad.code, bad.field) == ("number_too_large", "a")


def test_times_in_lists_are_written_as_others_are(tmp_path: Path) -> None:
    at = [datetime(2024, 1, 2, 3, 4, 5)]
    times = {unit: pyarrow.array([at], pyarrow.list_(pyarrow.timestamp(unit))) for unit in ("us", "ns")}
    parquet.write_table(pyarrow.table({"q": ["x"], **times}), tmp_path / "in.parquet")
    kept = take(tmp_path, tmp_path / "in.parquet", keep=["us", "ns"]).kept
    rows, _ = written(tmp_path / "out", kept, [outcomes([0])])
    assert rows == {0: {"us": ["2024-01-02T03:04:05"], "ns": ["2024-01-02T03:04:05"]}}


def test_the_prompt_may_be_kept_and_dray_s_own_names_stay_dray_s(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("q,text,n\nhello,mine,1\n")
    kept = take(tmp_path, tmp_path / "in.csv", keep=["q", "text", "n", "q"]).kept
    write_outputs([outcomes([0])], directory=str(tmp_path / "out"), kept=kept, format="parquet")
    read = parquet.read_table(tmp_path / "out" / "output.parquet")
    assert read.select(["q", "row_text", "n"]).to_pylist() == [{"q": "hello", "row_text": "mine", "n": "1"}]
    with pytest.raises(ConfigError, match="'text' would be 'row_text' in Parquet"):
        source_of("in.csv", prompt_column="q", keep_columns=["text", "row_text"])


def test_rows_that_are_refused_keep_their_columns_too(tmp_path: Path) -> None:
    file = lines(tmp_path / "in.jsonl", [{"q": "x", "a": 1}, {"q": None, "a": 2}, {"a": 3}, {"q": "y"}])
    with file.open("ab") as more:
        more.write(b"no json\n")
    ingested = take(tmp_path, file, keep=["a"], skip_invalid=True)
    assert [one.index for page in ingested.rejects() for one in page] == [1, 2, 4]
    rows, _ = written(tmp_path / "out", ingested.kept, [outcomes([0, 1]), outcomes([2, 3, 4])])
    assert rows == {0: {"a": 1}, 1: {"a": 2}, 2: {"a": 3}, 3: {"a": None}, 4: {"a": None}}


def test_they_are_noted_where_they_are_to_lie(tmp_path: Path) -> None:
    """They may be more than ``TMPDIR`` holds."""
    file = lines(tmp_path / "in.jsonl", [{"q": "x", "a": number} for number in range(1500)])
    seen: list[list[str]] = []
    take(
        tmp_path,
        file,
        keep=["a"],
        progress=lambda _rows: seen.append([one.name for one in (tmp_path / "job").iterdir()]),
    )
    assert seen
    assert all(any(name.startswith(".spool.jsonl.kept.") for name in names) for names in seen)
    assert sorted(one.name for one in (tmp_path / "job").iterdir()) == ["spool.jsonl", "spool.jsonl.kept"]


def test_a_disk_that_is_full_of_them_pauses_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: AtomicFile, data: bytes) -> None:
        raise JobPausedError(f"{self.uri} cannot be written: No space left on device")

    file = lines(tmp_path / "in.jsonl", [{"q": "x", "a": 1}])
    monkeypatch.setattr(AtomicFile, "write", full)
    with pytest.raises(JobPausedError, match=r"spool\.jsonl\.kept cannot be written"):
        take(tmp_path, file, keep=["a"])
    assert list(tmp_path.glob("job/*")) == []


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("q,label\nx,1\n")
    [missing] = problems(tmp_path, tmp_path / "in.csv", keep=["lable"])
    assert (missing.code, missing.field) == ("missing_column", "lable")
    file = lines(tmp_path / "in.jsonl", [{"q": "x", "label": 1}, {"q": "x"}])
    [missing] = problems(tmp_path, file, keep=["label", "lable"])
    assert (missing.code, missing.field, missing.file) == ("missing_column", "lable", str(file))
    lines(file, [{"q": None}, {"q": "x"}])
    with pytest.raises(InputError, match="no row has the column 'label'"):
        take(tmp_path, file, keep=["label"], skip_invalid=True)
    assert list(tmp_path.glob("job/*")) == []


def test_bytes_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"q": ["x"], "a": [b"1"], "b": [[b"1"]]}), tmp_path / "in.parquet")
    for name in "ab":
        [bad] = problems(tmp_path, tmp_path / "in.parquet", keep=[name])
        assert (bad.code, bad.line, bad.field) == ("invalid_value", 1, name)
        assert "do not keep it" in bad.message


def test_a_row_whose_value_cannot_be_kept_has_its_id_all_the_same(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {"id": ["x", "y", "z"], "q": ["1", "2", None], "a": [[b"1"], None, None]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "in.parquet")
    source = source_of(str(tmp_path / "in.parquet"), prompt_column="q", id_column="id", keep_columns=["a"])
    ingested = ingest(source, spool_uri=str(tmp_path / "spool.jsonl"), skip_invalid=True)
    errors = [(one.custom_id, one.error_code) for page in ingested.rejects() for one in page]
    assert errors == [("x", "invalid_value"), ("z", "missing_value")]


def test_a_batch_file_has_no_columns(tmp_path: Path) -> None:
    row = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    file = lines(tmp_path / "in.jsonl", [row])
    source = source_of(str(file), kind=Kind.COMPLETION, keep_columns=["a"])
    with pytest.raises(ConfigError, match="keep columns goes with a prompt column"):
        ingest(source, spool_uri=str(tmp_path / "spool.jsonl"))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    kept = take(tmp_path, lines(tmp_path / "in.jsonl", [{"q": "x", "a": 1}]), keep=["a"]).kept
    assert kept is not None
    Path(kept.uri).write_bytes(b"\x1f\x8b of another sort")
    with pytest.raises(JobFailedError, match=r"spool\.jsonl\.kept: .* cannot be read: .* --without-kept"):
        written(tmp_path / "out", kept, [outcomes([0])])
    Path(kept.uri).unlink()
    with pytest.raises(JobFailedError, match=r"spool\.jsonl\.kept: .* are gone.* --without-kept"):
        write_outputs([outcomes([0])], directory=str(tmp_path / "out"), kept=kept)
    assert list((tmp_path / "out").glob("output*")) == []


def test_a_map_of_parquet_is_kept_as_an_object(tmp_path: Path) -> None:
    kinds = pyarrow.map_(pyarrow.string(), pyarrow.float32())
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.table({"q": ["x"], "k": pyarrow.array([[("a", 0.1)]], kinds)}), path)
    kept = take(tmp_path, path, keep=["k"]).kept
    assert kept is not None
    assert orjson.loads(Path(kept.uri).read_bytes()) == [0, {"a": 0.1}]


@pytest.mark.parametrize("levels", [252, 253, 254, 255])
def test_a_value_that_is_nested_too_deeply_is_a_problem_of_its_row(tmp_path: Path, levels: int) -> None:
    deep = b'{"q":"x","k":' + b"[" * levels + b"]" * levels + b"}\n"
    path = tmp_path / "in.jsonl"
    path.write_bytes(deep + b'{"q":"y","k":1}\n')
    ingested = take(tmp_path, path, keep=["k"], skip_invalid=True)
    bad = [(one.index, one.error_code) for page in ingested.rejects() for one in page]
    assert bad == ([] if levels == 252 else [(0, "invalid_value")])


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_long_texts_of_a_page_are_not_all_kept_in_memory(tmp_path: Path, form: OutputFormat) -> None:
    """A page of short answers has 2,000 rows, whatever stands beside them."""
    file, text = tmp_path / "spool.jsonl.kept", "x" * 60_000
    with file.open("wb") as written:
        written.writelines(orjson.dumps([one, text]) + b"\n" for one in range(2_000))
    kept = Kept(uri=str(file), columns=(KeptColumn(name="text", type="text"),))
    pages = [[Outcome(one, None, b"{}") for one in range(2_000)]]
    write_outputs([pages[0][:1]], directory=str(tmp_path / "warm"), kept=kept, format=form)  # its imports
    tracemalloc.start()
    try:
        found = write_outputs(pages, directory=str(tmp_path / "out"), kept=kept, format=form)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.output.rows == 2_000
    assert most < file.stat().st_size * 2 / 3


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("part_bytes", [1 << 30, 2_000])
def test_the_bytes_do_not_depend_on_the_pieces(
    tmp_path: Path, form: OutputFormat, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"q": "x", "text": "y" * (97 * one % 400)} for one in range(60)]
    kept = take(tmp_path, lines(tmp_path / "in.jsonl", rows), keep=["text"]).kept
    found = []
    for size in (1 << 20, 1_000, 1):
        monkeypatch.setattr(keeping, "_PIECE_BYTES", size)
        files = write_outputs(
            [outcomes(list(range(40))), outcomes(list(range(40, 60)))],
            directory=str(tmp_path / f"out-{size}"),
            kept=kept,
            format=form,
            part_bytes=part_bytes,
        ).files
        found.append({name: (info.rows, info.sha256) for name, info in files.items()})
    assert found[0] == found[1] == found[2]
