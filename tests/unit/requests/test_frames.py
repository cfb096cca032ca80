"""DataFrames into requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest

from dray.errors import ConfigError
from dray.kinds import Kind
from dray.requests.reading.frames import frame_to_source
from dray.requests.reading.readers import ReadLimits, files_of, read_rows, source_digest
from dray.requests.reading.settling import settled
from dray.requests.row_shape import RowShape
from dray.requests.sources import RowDefaults, Source
from tests.unit.requests.taking import asked, take

pytestmark = pytest.mark.unit

TEXTS = RowShape(kind=Kind.COMPLETION, prompt_column="text")
SYSTEM = {"role": "system", "content": "Be short."}
USER = {"role": "user", "content": "hi"}


def test_frames_give_the_same_bytes_each_time(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": ["a", "b"], "id": ["x", "y"]}, index=[5, 9])
    sources = [frame_to_source(frame, tmp_path / name, replace(TEXTS, id_column="id")) for name in ("1", "2")]
    assert source_digest(sources[0]) == source_digest(sources[1])
    assert asked(take(tmp_path, sources[0])) == [("x", "a"), ("y", "b")]


def test_a_frame_leaves_the_file_of_another(tmp_path: Path) -> None:
    asked_for: list[int] = []

    def source(text: str) -> Source:
        frame = pandas.DataFrame({"text": [text]})
        return frame_to_source(frame, tmp_path, TEXTS, before_writing=lambda: asked_for.append(1))

    first, second = source("a"), source("b")
    assert source("a") == first != second
    assert asked_for == [1, 1]  # none for the file that is there
    assert source_digest(first) != source_digest(second)
    assert asked(take(tmp_path / "job", first)) == [("row-0", "a")]
    assert list(tmp_path.glob("**/*.part")) == []


def test_the_file_of_an_earlier_version_serves_an_equal_frame(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": ["a"]})
    new = frame_to_source(frame, tmp_path / "new", TEXTS).inputs[0]
    old = tmp_path / "old" / "frame.parquet"
    old.parent.mkdir()
    old.write_bytes(Path(new).read_bytes())
    assert frame_to_source(frame, old.parent, TEXTS).inputs == (str(old),)


def test_a_frame_of_messages(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"messages": [[USER], [SYSTEM, USER]]})
    assert asked(take(tmp_path, frame_to_source(frame, tmp_path / "f", RowShape()))) == [
        ("row-0", [USER]),
        ("row-1", [SYSTEM, USER]),
    ]
    with pytest.raises(ConfigError, match="messages"):
        frame_to_source(frame.rename(columns={"messages": "text"}), tmp_path / "g", RowShape())


def asked_of(folder: Path, frame: pandas.DataFrame, shape: RowShape) -> list[Any]:
    return [what for _, what in asked(take(folder, frame_to_source(frame, folder / "f", shape)))]


@pytest.mark.parametrize("column", ["messages", "prompt", "conversations"])
def test_a_column_of_messages_is_found_in_a_frame_as_in_a_file(tmp_path: Path, column: str) -> None:
    assert asked_of(tmp_path, pandas.DataFrame({column: [[USER]]}), RowShape()) == [[USER]]


def test_so_is_the_system_message_of_each_row(tmp_path: Path) -> None:
    """Also where another column cannot be stored."""
    frame = pandas.DataFrame({"messages": [[USER], [USER]], "system": ["Be short.", None], "odd": [1, "x"]})
    assert asked_of(tmp_path, frame, RowShape()) == [[SYSTEM, USER], [USER]]


ODD: list[Any] = [
    [1, "x"],
    [object(), object()],
    [1 + 2j, 3j],
    [{}, {}],  # Arrow takes these, and Parquet does not
    [{"x": {}}, None],
    pandas.cut([1, 2], 2),
    [2**70, 1],
]


@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("odd", ODD)
def test_a_column_that_no_row_is_made_of_may_hold_anything(tmp_path: Path, odd: Any, twice: bool) -> None:
    frame = pandas.DataFrame({"text": ["a", None], "id": [1, 2], "odd": odd})
    if twice:
        frame.insert(3, "odd", [1, 2], allow_duplicates=True)
    source = frame_to_source(frame, tmp_path / "f", replace(TEXTS, id_column="id"))
    assert asked(take(tmp_path, source, skip_invalid=True)) == [("1", "a")]


@pytest.mark.parametrize("odd", ODD)
def test_so_may_one_beside_messages(tmp_path: Path, odd: Any) -> None:
    frame = pandas.DataFrame({"messages": [[USER], [USER]], "odd": odd})
    assert asked_of(tmp_path, frame, RowShape()) == [[USER], [USER]]


def test_objects_without_a_name_are_kept_and_asked_as_others_are(tmp_path: Path) -> None:
    """Parquet has no type for them: an argument of a tool that takes any object, say."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    frame = pandas.DataFrame({"messages": [[USER], [USER]], "tools": [[tool], None], "meta": [{"a": {}}, {}]})
    shape = RowShape(keep_columns=("meta",))
    source, _ = settled(frame_to_source(frame, tmp_path / "f", shape))
    rows = list(read_rows(source, files_of(source), RowDefaults(), ReadLimits()))
    assert [row.envelope and row.envelope.body for row in rows] == [
        {"messages": [USER], "tools": [tool]},
        {"messages": [USER]},
    ]
    assert [row.kept for row in rows] == [('{"a":{}}',), ("{}",)]


@pytest.mark.parametrize(
    ("frame", "shape", "told"),
    [
        (pandas.DataFrame({"text": ["a", 1]}), TEXTS, r"column 'text'.*frame\['text'\]\.astype\(str\)"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), TEXTS, "two columns of the name 'text'"),
        (pandas.DataFrame({"n": ["a"], "text": ["b"]}).set_index("text"), TEXTS, r"reset_index\(\)"),
        (
            pandas.DataFrame({"messages": [[USER], [{**USER, "content": [{"type": "text", "text": "a"}]}]]}),
            RowShape(),
            "messages_column='messages'",
        ),
        (pandas.DataFrame({"text": [{}, {}]}), TEXTS, "column 'text' cannot be stored"),
        (pandas.DataFrame({"text": pandas.cut([1, 2], 2)}), TEXTS, "column 'text' cannot be stored"),
        (pandas.DataFrame({"text": [2**70]}), TEXTS, "column 'text' cannot be stored"),
        (
            pandas.DataFrame({"text": ["a"], "n": [2**70]}),
            replace(TEXTS, keep_columns=("n",)),
            "column 'n' cannot be stored",
        ),
    ],
)
def test_a_column_that_cannot_be_stored_is_named_with_a_way_out(
    tmp_path: Path, frame: pandas.DataFrame, shape: RowShape, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        frame_to_source(frame, tmp_path / "f", shape)


def test_texts_and_lists_of_parts_stand_in_one_column_of_messages(tmp_path: Path) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    frame = pandas.DataFrame({"messages": [[USER], [SYSTEM, parts]]})
    assert asked_of(tmp_path, frame, RowShape(messages_column="messages")) == [[USER], [SYSTEM, parts]]


def test_a_period_is_a_text_as_the_frame_shows_it(tmp_path: Path) -> None:
    """Parquet keeps the number of months since 1970, which was the prompt."""
    frame = pandas.DataFrame({"text": pandas.period_range("2024-01", periods=2, freq="M")})
    assert asked_of(tmp_path, frame, TEXTS) == ["2024-01", "2024-02"]
