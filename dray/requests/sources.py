"""What the user names as input: a plain description, before anything is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dray.errors import ConfigError, InputError, Problem
from dray.requests.addresses import refuse_secret
from dray.requests.model import Kind

if TYPE_CHECKING:
    import pandas

Format = Literal["jsonl", "csv", "tsv", "parquet"]

_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_COMPRESSIONS = (".gz", ".zst")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShape:
    """How a row of columns becomes a request.

    Exactly one of ``prompt_column`` and ``template`` (``"Sort this: {text}"``) is set. Without
    ``id_column`` the ids are ``row-0``, ``row-1``... in input order.
    """

    kind: Kind = Kind.CHAT
    prompt_column: str | None = None
    template: str | None = None
    system_prompt: str | None = None
    id_column: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlBatch:
    """Files in the OpenAI batch format, one request a line."""

    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Files of rows with columns; ``shape`` says what becomes the prompt."""

    inputs: tuple[str, ...]
    format: Format
    shape: RowShape


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlQuery:
    """The rows that one SQL query gives, over an SQLAlchemy URL."""

    url: str = field(repr=False)  # may hold a password
    query: str
    shape: RowShape


Source = JsonlBatch | Rows | SqlQuery


@dataclass(frozen=True, kw_only=True, slots=True)
class RowDefaults:
    """What the job sets for every row.

    ``sampling`` holds OpenAI body fields (``max_tokens``, ``temperature``...); a row's own value wins.
    With ``model_name`` rows that name another model are left to the engine, which refuses them one by one.
    """

    model_name: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


def source_of(
    inputs: Sequence[str] | str,
    *,
    kind: Kind = Kind.CHAT,
    prompt_column: str | None = None,
    template: str | None = None,
    system_prompt: str | None = None,
    id_column: str | None = None,
    query: str | None = None,
    format: Format | None = None,  # noqa: A002  the user's word for it
) -> Source:
    """The source that the options describe; by extension where ``format`` is not given.

    With ``query``, the one input is a database URL. Raises ConfigError for options that do not go
    together, InputError for files of several formats.
    """
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    shape = RowShape(
        kind=kind,
        prompt_column=prompt_column,
        template=template,
        system_prompt=system_prompt,
        id_column=id_column,
    )
    if query is not None:
        if len(names) != 1:
            raise ConfigError("a query reads one database: name one database URL as the input")
        return SqlQuery(url=names[0], query=query, shape=_checked(shape, "a query"))
    for name in names:
        refuse_secret(name)
    found = format or _common_format(names)
    if found == "jsonl" and prompt_column is None and template is None:
        _refuse_shape_options(shape)
        return JsonlBatch(inputs=names)
    return Rows(inputs=names, format=found, shape=_checked(shape, f"{found} input"))


def frame_to_source(
    frame: pandas.DataFrame,
    directory: Path,
    *,
    kind: Kind = Kind.CHAT,
    prompt_column: str | None = None,
    template: str | None = None,
    system_prompt: str | None = None,
    id_column: str | None = None,
) -> Rows:
    """A DataFrame as a source: written to ``directory``/frame.parquet; equal frames give equal bytes."""
    import pyarrow
    from pyarrow import parquet

    shape = RowShape(
        kind=kind,
        prompt_column=prompt_column,
        template=template,
        system_prompt=system_prompt,
        id_column=id_column,
    )
    _checked(shape, "a DataFrame")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "frame.parquet"
    try:
        table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(
            "the DataFrame cannot be stored as Parquet: every column needs a name and one type of value"
        ) from error
    parquet.write_table(table.replace_schema_metadata(None), path, compression="zstd", row_group_size=16_384)
    return Rows(inputs=(str(path),), format="parquet", shape=shape)


def template_digest(source: Source) -> str:
    """A digest of how rows become requests, for the job's fingerprint; equal for equal shapes."""
    if isinstance(source, JsonlBatch):
        return "openai-batch"
    return hashlib.sha256(repr(source.shape).encode()).hexdigest()


def _common_format(names: Sequence[str]) -> Format:
    formats = {name: _format_of(name) for name in names}
    problems = [
        Problem(
            "unknown_format",
            "cannot tell the format from the name; give the file, or a link to it, one that ends in "
            f"{', '.join(_FORMATS)} (and .gz or .zst)",
            name,
        )
        for name, found in formats.items()
        if found is None
    ]
    if problems:
        raise InputError(problems[:20], total=len(problems))
    kinds = [found for found in formats.values() if found is not None]
    if not kinds:
        raise InputError([Problem("missing_input", "no input was named")])
    if len(set(kinds)) > 1:
        odd = next(name for name, found in formats.items() if found != kinds[0])
        raise InputError(
            [
                Problem(
                    "mixed_formats", f"one job reads one format: {names[0]} is {kinds[0]}, this is not", odd
                )
            ]
        )
    return kinds[0]


def _format_of(name: str) -> Format | None:
    path = name.lower().rstrip("*?")  # part-*.jsonl* says enough
    for suffix in _COMPRESSIONS:
        path = path.removesuffix(suffix)
    for suffix, found in _FORMATS.items():
        if path.endswith(suffix):
            return found
    return None


def _checked(shape: RowShape, what: str) -> RowShape:
    if shape.prompt_column is not None and shape.template is not None:
        raise ConfigError("prompt column and template exclude each other: give one")
    if shape.prompt_column is None and shape.template is None:
        raise ConfigError(f"{what} needs a prompt column (--prompt-column) or a template (--template)")
    if shape.system_prompt is not None and shape.kind is not Kind.CHAT:
        raise ConfigError(f"a system prompt goes with chat only, not with {shape.kind.value}")
    return shape


def _refuse_shape_options(shape: RowShape) -> None:
    for name in ("system_prompt", "id_column"):
        if getattr(shape, name) is not None:
            raise ConfigError(
                f"{name.replace('_', ' ')} goes with a prompt column or a template; "
                "rows in the OpenAI batch format say it themselves"
            )
