"""What the user names as input: a plain description, before anything is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dray.errors import ConfigError, InputError, Problem
from dray.kinds import Kind, of_conversations, with_documents, with_sound, with_videos
from dray.requests.columns.template import runs_of
from dray.requests.media.medium import roots_of
from dray.requests.reading.dataset_hints import told_of_hub
from dray.requests.reading.formats import FORMATS, Format, format_of, told_of_pattern
from dray.requests.reading.inputs import local_pattern, refuse_odd
from dray.storage.addresses import HUB, refuse_secret
from dray.storage.files import local_path


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyFields:
    """Columns that go into a row's request as they are, where a row has them.

    ``nulls`` says whether a null is a value of its own: Parquet has one wherever a row says nothing.
    """

    names: frozenset[str]
    nulls: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShape:
    """How a row of columns becomes a request.

    One of ``prompt_column``, ``template`` (``"Sort this: {text}"``) and ``messages_column`` is set; none
    while the input itself is to say it (``is_open``). Without ``id_column`` the ids are ``row-0``,
    ``row-1``... in input order. With ``reorder_fields`` lines of the template that name columns may change
    places (:mod:`dray.requests.columns.field_order`). ``fields`` are set where the column of messages was
    found, and not named. Images come from ``image_column``, or stand in messages; those that are files lie
    below ``image_root`` (:mod:`dray.requests.media.images`). Some kinds hold the prompt against the texts of
    ``document_column``. Sounds come from ``audio_column`` in the same way, and lie below ``audio_root``;
    videos from ``video_column``, below ``video_root``. Kinds that are of a sound need no prompt.
    ``keep_columns`` stand beside the answers in the files.
    """

    kind: Kind = Kind.CHAT
    prompt_column: str | None = None
    template: str | None = None
    system_prompt: str | None = None
    id_column: str | None = None
    messages_column: str | None = None
    reorder_fields: bool = False
    fields: BodyFields | None = None
    image_column: str | None = None
    image_root: str | None = None
    document_column: str | None = None
    audio_column: str | None = None
    audio_root: str | None = None
    video_column: str | None = None
    video_root: str | None = None
    keep_columns: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether nothing says yet what becomes the prompt."""
        prompts = (self.prompt_column, self.template, self.messages_column)
        of_sound = self.kind.sound is not None and self.audio_column is not None
        return all(one is None for one in prompts) and not of_sound


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlBatch:
    """Files in the OpenAI batch format, one request a line.

    ``shape`` is open: it says what is to be done with rows of messages, should the files hold those.
    """

    inputs: tuple[str, ...]
    shape: RowShape = RowShape()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Files of rows with columns; ``shape`` says what becomes the prompt.

    ``delimiter`` stands between the values of CSV and TSV where it is not their own.
    """

    inputs: tuple[str, ...]
    format: Format
    shape: RowShape
    delimiter: str | None = None


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
    ``adapters`` are names of LoRA adapters, which rows may have beside that of the model.
    """

    model_name: str | None = None
    adapters: frozenset[str] = frozenset()
    sampling: Mapping[str, Any] = field(default_factory=dict)


def source_of(
    inputs: Sequence[str] | str,
    *,
    kind: Kind = Kind.CHAT,
    prompt_column: str | None = None,
    template: str | None = None,
    system_prompt: str | None = None,
    id_column: str | None = None,
    messages_column: str | None = None,
    image_column: str | None = None,
    image_root: str | None = None,
    audio_column: str | None = None,
    audio_root: str | None = None,
    video_column: str | None = None,
    video_root: str | None = None,
    document_column: str | None = None,
    reorder_fields: bool = False,
    keep_columns: Sequence[str] = (),
    query: str | None = None,
    delimiter: str | None = None,
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
        messages_column=messages_column,
        image_column=image_column,
        image_root=image_root,
        document_column=document_column,
        audio_column=audio_column,
        audio_root=audio_root,
        video_column=video_column,
        video_root=video_root,
        reorder_fields=reorder_fields,
        keep_columns=tuple(dict.fromkeys(keep_columns)),
    )
    check_fields(shape)
    if query is not None:
        return _query(names, query, shape, delimiter)
    for name in (*names, *roots_of(shape).values()):
        refuse_secret(name)
    found = format or _common_format(names)
    if delimiter is not None and found not in ("csv", "tsv"):
        raise ConfigError(f"a delimiter goes with CSV files; this is {found} input")
    if found == "jsonl" and shape.is_open:
        return JsonlBatch(inputs=names, shape=shape)
    if not (found == "parquet" and shape.is_open and kind.conversation is not None):
        shape = checked(shape, f"{found} input")
    return Rows(inputs=names, format=found, shape=shape, delimiter=_delimiter(delimiter))


def _query(names: Sequence[str], query: str, shape: RowShape, delimiter: str | None) -> SqlQuery:
    if delimiter is not None:
        raise ConfigError("a delimiter goes with CSV files, not with a query")
    if len(names) != 1:
        raise ConfigError("a query reads one database: name one database URL as the input")
    return SqlQuery(url=names[0], query=query, shape=checked(shape, "a query"))


def template_digest(source: Source) -> str:
    """A digest of how rows become requests, for the job's fingerprint; equal for equal shapes."""
    if isinstance(source, JsonlBatch) and replace(source.shape, kind=Kind.CHAT) == RowShape():
        return "openai-batch"
    described = repr(source.shape)
    if not source.shape.keep_columns:
        described = described.removesuffix(", keep_columns=())") + ")"
    # As it was described before there were such fields.
    if source.shape.video_column is None and source.shape.video_root is None:
        described = described.removesuffix(", video_column=None, video_root=None)") + ")"
    if source.shape.audio_column is None and source.shape.audio_root is None:
        described = described.removesuffix(", audio_column=None, audio_root=None)") + ")"
    if source.shape.document_column is None:
        described = described.removesuffix(", document_column=None)") + ")"
    if source.shape.image_column is None and source.shape.image_root is None:
        described = described.removesuffix(", image_column=None, image_root=None)") + ")"
    if source.shape.fields is None:  # as it was described before there was such a field
        described = described.removesuffix(", fields=None)") + ")"
    if not source.shape.reorder_fields:  # as it was described before there was such an option
        described = described.removesuffix(", reorder_fields=False)") + ")"
    if source.shape.messages_column is None:  # as it was described before there was such a column
        described = described.removesuffix(", messages_column=None)") + ")"
    if isinstance(source, Rows) and source.delimiter is not None:
        described += f", delimiter={source.delimiter!r}"
    return hashlib.sha256(described.encode()).hexdigest()


def _common_format(names: Sequence[str]) -> Format:
    formats = {name: format_of(name) for name in names}
    refuse_odd([name for name, found in formats.items() if found is None])
    problems = [
        Problem(
            "unknown_format",
            _told_of(name),
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


def _told_of(name: str) -> str:
    """Why the format of an input is not known."""
    if name.startswith(HUB):
        return told_of_hub(name)
    if "://" not in name and any(sign in name for sign in "*?[") and not Path(name).exists():
        return told_of_pattern(local_pattern(local_path(name)))
    if name.lower().endswith((".xlsx", ".xls")):
        return "this is an Excel workbook: save its sheet as CSV, and give that file"
    return (
        "cannot tell the format from the name; give the file, or a link to it, one that ends in "
        f"{', '.join(FORMATS)} (and .gz or .zst)"
    )


def check_fields(shape: RowShape) -> None:
    """Refuse columns that the kind has no use for; ConfigError says which."""
    _check_kept(shape.keep_columns)
    if shape.document_column is not None and shape.kind.documents is None:
        raise ConfigError(f"a document column goes with {with_documents()} only, not with {shape.kind}")
    if shape.audio_column is not None and not shape.kind.takes_sound:
        raise ConfigError(f"an audio column goes with {with_sound()} only, not with {shape.kind}")
    if shape.video_column is not None and not shape.kind.sees_and_hears:
        raise ConfigError(f"a video column goes with {with_videos()} only, not with {shape.kind}")
    if not shape.reorder_fields:
        return
    if shape.template is None:
        raise ConfigError("reorder_fields goes with a template, whose lines may then change places")
    runs_of(shape.template.split("\n"))


def _check_kept(columns: Sequence[str]) -> None:
    if not columns:
        return
    from dray.requests.outputs.parquet import names_beside  # pyarrow, before the first line of a run

    names = names_beside(columns)
    for name, column in zip(names, columns, strict=True):
        if names.count(name) > 1:
            raise ConfigError(
                f"keep columns: {column!r} would be {name!r} in Parquet, and so would another one; rename it"
            )


def checked(shape: RowShape, what: str) -> RowShape:
    """The shape, where it says what becomes the prompt of ``what``; ConfigError where it does not."""
    given = [shape.prompt_column, shape.template, shape.messages_column]
    if len([name for name in given if name is not None]) > 1:
        raise ConfigError("prompt column, template and messages column exclude each other: give one")
    if shape.kind.sound is not None and shape.audio_column is None:
        raise ConfigError(f"{shape.kind} is of sound: name the column that holds it (--audio-column)")
    if shape.is_open:
        raise ConfigError(
            f"{what} needs a prompt column (--prompt-column), a template (--template) or a column of chat "
            "messages (--messages-column)"
        )
    texts = {"system_prompt": "a system prompt", "messages_column": "a messages column"}
    for name, what in (texts | {"image_column": "an image column"}).items():
        if getattr(shape, name) is not None and shape.kind.conversation is None:
            raise ConfigError(f"{what} goes with {of_conversations()} only, not with {shape.kind}")
    if shape.kind.documents is not None and shape.document_column is None:
        raise ConfigError(
            f"{shape.kind} holds a prompt against documents: name their column (--document-column) beside "
            "that of the prompts (--prompt-column) or a template"
        )
    return shape


def _delimiter(given: str | None) -> str | None:
    """One character; ``tab`` and ``\\t`` name the one that is hard to type."""
    if given is None:
        return None
    found = "\t" if given in ("tab", "\\t") else given
    if len(found) != 1 or found in '"\r\n\0' or (not found.isprintable() and found != "\t"):
        raise ConfigError(f"delimiter {given!r}: give one character, such as ';', '|' or tab")
    return found
