"""The table of kinds: what each of its rows must hold."""

from __future__ import annotations

import ast
import inspect
import pickle
from itertools import chain
from pathlib import Path

import pytest

from dray.errors import ConfigError
from dray.kinds import KINDS, Body, Kind, all_kinds, kind_named

pytestmark = pytest.mark.unit

ROWS = all_kinds()


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_a_row_fits_together(kind: Kind) -> None:
    assert KINDS[kind.url] == kind_named(kind.name) == kind
    for body in (_whole(kind), kind.proof):
        field, count = kind.prompts(body)
        assert field in body
        assert field in kind.texts
        assert count == 1
    answer = kind.simulated({}, "text", "0f" * 32)
    assert next(iter(answer)) == "object"
    for column in kind.columns:
        assert column.read(answer)
        others = [other.simulated({}, "text", "0f" * 32) for other in ROWS if column not in other.columns]
        assert [column.read(other) for other in others] == [None] * len(others)


def _whole(kind: Kind) -> Body:
    """A body out of columns."""
    documents = {} if kind.documents is None else {kind.documents: "a"}
    sound = {} if kind.sound is None else {kind.sound: "a.wav"}
    return kind.body("prompt") | documents | sound


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_a_row_goes_to_other_processes(kind: Kind) -> None:
    sent = pickle.loads(pickle.dumps(kind))
    assert sent == kind
    assert sent.body("a") == kind.body("a")


def test_fingerprints_hold_the_text_of_a_kind() -> None:
    """Jobs of earlier versions are resumed by it."""
    assert [repr(kind) for kind in ROWS] == [
        "<Kind.CHAT: 'chat'>",
        "<Kind.COMPLETION: 'completion'>",
        "<Kind.EMBEDDING: 'embedding'>",
        "<Kind.SCORE: 'score'>",
        "<Kind.RERANK: 'rerank'>",
        "<Kind.CLASSIFICATION: 'classification'>",
        "<Kind.TRANSCRIPTION: 'transcription'>",
        "<Kind.TRANSLATION: 'translation'>",
        "<Kind.RESPONSE: 'response'>",
    ]


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_the_class_that_serves_it_is_there(kind: Kind) -> None:
    module, _, name = kind.engine.serving.partition(":")
    classes = _classes_of(module) | _classes_of("dray.engine.vllm_adapter.kinds.pooling")
    family = [
        classes[name],
        *(classes[base.id] for base in classes[name].bases if isinstance(base, ast.Name)),
    ]
    methods = {
        one.name
        for one in chain(*(part.body for part in family))
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {"check", "start", "response", "close"} <= methods


def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    path = Path(inspect.getfile(Kind)).parents[2] / (module.replace(".", "/") + ".py")
    return {one.name: one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)}


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="chat, completion, embedding, score"):
        kind_named("scores")


def test_no_other_module_asks_which_kind_it_is() -> None:
    """Names of kinds stand in the table, in defaults, and in the class that serves them."""
    root = Path(inspect.getfile(Kind)).parents[2]
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
