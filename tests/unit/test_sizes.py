"""Code stays small enough to be read, and says what it is: folders, files, functions, docstrings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FOLDER_FILES = 36
FILE_LINES = 400
FUNCTION_LINES = 60
STEP_LINES = 300
STEPS = 10


def sources() -> Iterator[Path]:
    for folder in ("dray", "flows", "tasks", "blocks"):
        yield from (ROOT / folder).rglob("*.py")


def functions() -> dict[str, int]:
    """Lines of each function, its docstring included."""
    return {
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_no_folder_has_too_many_files_to_be_looked_through() -> None:
    found = Counter(str(file.parent.relative_to(ROOT)) for file in sources())
    assert {name: count for name, count in found.items() if count > FOLDER_FILES} == {}


def test_no_file_is_too_long_to_be_read() -> None:
    assert [str(file) for file in sources() if lines(file) > FILE_LINES] == []


def test_functions_are_short() -> None:
    found = functions()
    assert {name: count for name, count in found.items() if count > FUNCTION_LINES} == {}
    assert median(found.values()) <= 8
    assert quantiles(found.values(), n=10)[-1] <= 20


def test_the_readers_path_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    section = text[text.index("## How it works") :]
    steps = re.findall(r"^\| \[`(\S+)`\]\(\1\) \|", section, re.MULTILINE)
    assert 0 < len(steps) <= STEPS
    assert {step: lines(ROOT / step) for step in steps if lines(ROOT / step) >= STEP_LINES} == {}


_NO_SUBJECT = re.compile(r"(Of|As|By|That|So|With|On|To|Also|Those|From) ")


def test_docstrings_say_what_a_thing_is() -> None:
    """A docstring that stands alone, in an editor, says what it is of: it begins with no preposition."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        f"{file.relative_to(ROOT)}: {text.splitlines()[0]}"
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) and _NO_SUBJECT.match(text)
    ]
    assert found == []
