"""The options of ``dray run``: the fields of :class:`JobRequest`, as a command line names them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from cyclopts import Group, Parameter, Token
from pydantic.fields import FieldInfo

from dray.cli.help import ANSWERS, COUNTING, ENGINE, LIMITS, OUTPUT, PLACE, REQUIRED, ROWS, SAMPLING
from dray.cli.output import printable
from dray.errors import ConfigError
from dray.job.options.forms import GROUPS, Form
from dray.job.options.request import JobRequest
from dray.job.options.spelling import spelled

Command = TypeVar("Command", bound=Callable[..., int])

_GROUPS = {
    "rows": ROWS,
    "sampling": SAMPLING,
    "engine": ENGINE,
    "overflow": ANSWERS,
    "dedupe": ANSWERS,
    "reuse": ANSWERS,
    "format": OUTPUT,
    "part_bytes": OUTPUT,
    "overwrite": OUTPUT,
    "deadline": LIMITS,
    "budget": LIMITS,
    "hardware": LIMITS,
    "on_demand": LIMITS,
    "max_machines": LIMITS,
    "weights": LIMITS,
    "prices": LIMITS,
    "overrides": COUNTING,
    "sample": COUNTING,
    "image_tokens": COUNTING,
    "arguments": COUNTING,
}


@dataclass(frozen=True)
class Option:
    """One option: a field of the request, or of one of its groups."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def name(self) -> str:
        """The option as a user types it, with its dashes."""
        return spelled(self.path)

    @property
    def keyword(self) -> str:
        """The name of its parameter in the command's function."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def group(self) -> Group:
        """Where the help shows it."""
        return REQUIRED if self.field.is_required() else _GROUPS.get(self.path[0], PLACE)

    @property
    def takes_pairs(self) -> bool:
        """Whether it is given again and again, as KEY=VALUE."""
        return get_origin(self.field.annotation) is dict

    @property
    def takes_text(self) -> bool:
        """Whether its value is a text or a name of the user's, which may begin with a dash."""
        hint = self.field.annotation
        return self.path[0] == "rows" and str in (hint, *get_args(hint))

    def parameter(self) -> inspect.Parameter:
        """The parameter that cyclopts reads."""
        hint: Any = list[str] if self.takes_pairs else self.field.annotation
        if self.field.default_factory is not None:
            hint = hint | None
        said = f"{'KEY=VALUE: ' if self.takes_pairs else ''}{self.field.description}"
        read = _whole if int in (hint, *get_args(hint)) else None
        shown = Parameter(name=self.name, group=self.group, help=said, negative=(), converter=read)
        return inspect.Parameter(
            self.keyword,
            inspect.Parameter.KEYWORD_ONLY,
            default=self._default(),
            annotation=Annotated[hint, shown],
        )

    def _default(self) -> Any:
        if self.field.is_required():
            return inspect.Parameter.empty
        return None if self.field.default_factory is not None else self.field.default


def _whole(hint: Any, tokens: Sequence[Token]) -> int | str:
    """A whole number: cyclopts would make 2 of 1.5. A field that takes texts, too, judges them itself."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        if str in get_args(hint):
            return text
        raise ValueError(f"{text!r} is not a whole number") from None


def options_of(form: type[Form]) -> Iterator[Option]:
    """The options for the fields of a form and of its groups; the input is no option."""
    for name, field in form.model_fields.items():
        if name in GROUPS:
            yield from (Option((name, inner), each) for inner, each in GROUPS[name].model_fields.items())
        elif name != "input" and not field.exclude:
            yield Option((name,), field)


OPTIONS = tuple(options_of(JobRequest))


def with_options(command: Command, options: Sequence[Option] = OPTIONS) -> Command:
    """Give a command that takes ``**options`` the options of the request, before its other keywords."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    first = [parameter for parameter in own if parameter.kind is inspect.Parameter.POSITIONAL_ONLY]
    last = [parameter for parameter in own if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    found = [*first, *(option.parameter() for option in options), *last]
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]  # inspect's own name
    return command


_OPTION = re.compile(r"--[a-z][a-z-]*(=.*)?|-h", re.DOTALL)


def with_texts_joined(words: Sequence[str]) -> list[str]:
    """The words of a command line with each text that begins with a dash joined to its option.

    Cyclopts would take it for another option. What looks like one is left to it: a value was forgotten.
    """
    names = {option.name for option in OPTIONS if option.takes_text}
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in names and word.startswith("-") and not _OPTION.fullmatch(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def request_of(inputs: Sequence[str], options: Mapping[str, Any]) -> JobRequest:
    """The request that a command line makes, with paths as seen from anywhere.

    Raises:
        ConfigError: names the option that cannot be so.
    """
    return JobRequest.read(given_by(inputs, options, OPTIONS), spelled).anchored()


def given_by(inputs: Sequence[str], values: Mapping[str, Any], options: Sequence[Option]) -> dict[str, Any]:
    """The fields of a form, from the values that a command line has for its options.

    Raises:
        ConfigError: names the option that cannot be so.
    """
    given: dict[str, Any] = {"input": list(inputs)}
    for option in options:
        value = values.get(option.keyword)
        if value is not None:
            place = given if len(option.path) == 1 else given.setdefault(option.path[0], {})
            place[option.path[-1]] = _pairs_of(option, value) if option.takes_pairs else value
    if values.get("query") is not None:
        given["input"] = _one_database(inputs)
    _refuse_undecodable(given)
    return given


def _pairs_of(option: Option, given: Sequence[str]) -> dict[str, Any]:
    """Names of fields may be typed with dashes; those of instances have some of their own."""
    return pairs(given, option.name, dashes=option.path == ("prices",))


def _one_database(inputs: Sequence[str]) -> str:
    if len(inputs) != 1:
        raise ConfigError(f"--query reads one database: name one database URL, and not {len(inputs)}")
    return inputs[0]


def _refuse_undecodable(given: Mapping[str, Any]) -> None:
    """Neither Prefect nor a store keeps a text that is not UTF-8."""
    for name, value in given.items():
        for text in value if isinstance(value, list) else [value]:
            if printable(text) != text:
                which = f" ({printable(text)})" if isinstance(text, str) else ""
                raise ConfigError(f"{name}{which} is not valid UTF-8; give a file a name that is")


_OF_TEMPLATES = ("{{", "{%", "{#")
"""How Jinja's expressions begin: a chat template may be given as a text."""


def pairs(given: Sequence[str] | None, option: str, *, dashes: bool = False) -> dict[str, Any]:
    """KEY=VALUE pairs; values are JSON where they parse as such, else text; ``dashes`` of keys may stay."""
    import orjson

    found: dict[str, Any] = {}
    for item in given or ():
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise ConfigError(f"{option} {item!r}: write it as KEY=VALUE")
        name = key if dashes else key.replace("-", "_")
        try:
            read = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            _refuse_broken(value, error, f"{option} {name}")
            read = value
        if name in found:
            raise ConfigError(f"{option} {name}: given twice; write all of it as one value")
        if isinstance(read, dict):
            _refuse_lost_names(value, f"{option} {name}")
        found[name] = read
    return found


def _refuse_broken(text: str, error: Exception, option: str) -> None:
    """Refuse what begins as an object or a list, and is none: rows would get it as a text."""
    if text.startswith(("{", "[")) and not text.startswith(_OF_TEMPLATES):
        raise ConfigError(
            f"{option}: begins as JSON and is not ({error}); put a text that is meant in quotes"
        )


def _refuse_lost_names(text: str, option: str) -> None:
    """Refuse an object that has a name twice: the first value would be lost."""
    import json

    def once(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{option}: {twice[:100]!r} stands in it twice; give each name one value")

    json.loads(text, object_pairs_hook=once)
