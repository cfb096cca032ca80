"""The table of kinds: what each of its rows must hold."""

from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path

import pytest

from dray.errors import ConfigError
from dray.kinds import KINDS, Kind

pytestmark = pytest.mark.unit

ROWS = list(KINDS.values())


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_a_row_fits_together(kind: Kind) -> None:
    assert KINDS[kind.url] == Kind.named(kind.name) == kind
    for body in (kind.body("prompt", None), kind.proof):
        field, count = kind.prompts(body)
        assert field in body
        assert field in kind.texts
        assert count == 1
    answer = kind.simulated({}, "text", "0f" * 32)
    assert next(iter(answer)) == "object"
    assert kind.column.read(answer)
    others = [other.simulated({}, "text", "0f" * 32) for other in ROWS if other.column != kind.column]
    assert [kind.column.read(other) for other in others] == [None] * len(others)


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_a_row_goes_to_other_processes(kind: Kind) -> None:
    sent = pickle.loads(pickle.dumps(kind))
    assert sent == kind
    assert sent.body("a", None) == kind.body("a", None)


def test_fingerprints_hold_the_text_of_a_kind() -> None:
    """Jobs of earlier versions are resumed by it."""
    assert [repr(kind) for kind in ROWS] == [
        "<Kind.CHAT: 'chat'>",
        "<Kind.COMPLETION: 'completion'>",
        "<Kind.EMBEDDING: 'embedding'>",
    ]


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_the_class_that_serves_it_is_there(kind: Kind) -> None:
    module, _, name = kind.engine.serving.partition(":")
    path = Path(inspect.getfile(Kind)).parents[1] / (module.replace(".", "/") + ".py")
    classes = {one.name: one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)}
    methods = {one.name for one in classes[name].body if isinstance(one, ast.FunctionDef)}
    assert {"start", "response"} <= methods


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="chat, completion, embedding"):
        Kind.named("scores")


def test_no_other_module_asks_which_kind_it_is() -> None:
    """Names of kinds stand in the table, in defaults, and in the class that serves them."""
    root = Path(inspect.getfile(Kind)).parents[1]
    found = {
        str(path.relative_to(root))
        for folder in ("dray", "tasks", "flows", "blocks")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id == "Kind"
            and part.attr in {kind.name.upper() for kind in ROWS}
            for part in (node.left, *node.comparators)
        )
    }
    assert found == set()
