"""How a row of columns becomes a request: what the user says of it, before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dray.errors import ConfigError
from dray.kinds import Kind, of_conversations, with_documents, with_sound, with_videos
from dray.requests.columns.template import runs_of


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyFields:
    """Columns that go into a row's request, where a row has them (:mod:`dray.requests.columns.bodies`).

    ``nulls`` says whether a null is a value of its own: Parquet has one wherever a row says nothing. The user
    has been told of those in ``said``. What makes requests of the rows adds the others that it took to
    ``late``.
    """

    names: frozenset[str]
    nulls: bool
    said: frozenset[str] = frozenset()
    late: set[str] = field(default_factory=set, compare=False, repr=False)


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


OPEN_SHAPE = RowShape()
"""The shape of rows of which the user says nothing."""


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

    refuse_same(columns, names_beside(columns), "Parquet")


def refuse_same(columns: Sequence[str], names: Sequence[str], where: str) -> None:
    """Refuse kept columns of which two have one of the ``names`` in a table; ConfigError says which."""
    for name, column in zip(names, columns, strict=True):
        if names.count(name) > 1:
            raise ConfigError(
                f"keep columns: {column!r} would be {name!r} in {where}, and so would another one; rename it"
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
