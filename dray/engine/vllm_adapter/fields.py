"""Which fields of a body dray takes: those that vLLM honours in a batch, or that change no answer."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import fields
from typing import Any

from vllm.renderers.chat_utils import has_non_text_content
from vllm.sampling_params import StructuredOutputsParams

from dray.engine.body_fields import OPENAI_DEFAULTS
from dray.engine.vllm_adapter.lora import adapter_of
from dray.errors import RequestRefused
from dray.kinds import KINDS, EngineKind
from dray.requests.media.medium import Medium, is_data
from dray.requests.media.parts import conversations_of
from dray.requests.media.placing import FORMS
from dray.requests.model import Request
from dray.requests.sameness import DEFAULTS, WITHOUT_EFFECT

# Fields that vLLM's protocol classes take and its offline path cannot honour.
_NOT_IN_A_BATCH = {
    "stream_options": "a batch has no stream",
    "stream_interval": "a batch has no stream",
    "use_beam_search": "beam search is not offered in a batch",
    "kv_transfer_params": "a batch transfers no key-value cache",
    "ec_transfer_params": "a batch transfers no encoder cache",
    "return_token_offsets": "only vLLM's render endpoints give token offsets",
    "return_mm_kwargs": "only vLLM's render endpoints give these",
    "mm_payload": "only vLLM's render endpoints give these",
    "priority": "the order of the rows is the job's",
    "watermarking": "the engine has no watermark configured",
    "routed_experts_prompt_start": "routed experts are not returned",
    "prompt_embeds": "prompts are text or token ids",
    "mm_processor_kwargs": "it is an engine argument, for all rows",
    "media_io_kwargs": "it is an engine argument, for all rows",
    "chat_template": "--engine-arg chat_template=... sets one for all rows",
}
_TRANSFERS = ("ec_transfer_params", "kv_transfer_params")
_STRUCTURED_FIELDS = frozenset(
    field.name for field in fields(StructuredOutputsParams) if not field.name.startswith("_")
)
# Fields of a row's structured_outputs that vLLM takes, and reads from the engine's configuration instead.
_OF_THE_ENGINE = ("disable_any_whitespace", "disable_additional_properties")


def refuse_other_engines(request: Request, engine: EngineKind) -> None:
    """Refuse a row that another kind of engine answers."""
    if KINDS[request.url].engine != engine:
        raise RequestRefused("unsupported", f"this engine {engine.does}; it does not serve {request.url}")


def refuse_unusable(
    body: dict[str, Any],
    only_name: str | None,
    adapters: Collection[str] = (),
    *,
    media: Collection[Medium] = (),
) -> None:
    """Refuse what vLLM would take and not honour, and whatever would make it fetch something.

    ``only_name`` is the one name that ``model`` may carry beside those of ``adapters``; None: any. ``media``
    are those that messages may hold.
    """
    model = body.get("model")
    if only_name is not None and model is not None and model != only_name:
        _refuse_other_model(model, only_name, adapters)
    if body.get("stream"):
        raise RequestRefused("stream_unsupported", "a batch has no stream; remove `stream`", param="stream")
    for name in body.keys() & _NOT_IN_A_BATCH.keys():
        if body[name]:
            raise _not_in_a_batch(name)
    options = body.get("chat_template_kwargs")
    if isinstance(options, dict) and options.get("chat_template"):
        raise _not_in_a_batch("chat_template", "chat_template_kwargs.")
    extras = body.get("vllm_xargs")
    for name in _TRANSFERS:
        if isinstance(extras, dict) and extras.get(name):  # vLLM takes them from there, too, of any type
            raise _not_in_a_batch(name, "vllm_xargs.")
    if body.get("length_penalty", 1) not in (1, None):
        raise RequestRefused(
            "unsupported_field", "`length_penalty` is for beam search, which is not offered in a batch"
        )
    _refuse_media(body, media)
    constraint = body.get("structured_outputs")
    if constraint is not None and not isinstance(constraint, dict):
        raise RequestRefused(
            "invalid_json_schema", "structured_outputs must be an object", param="structured_outputs"
        )
    if constraint:
        refuse_names(constraint.keys() - _STRUCTURED_FIELDS, "structured_outputs.")


def _not_in_a_batch(name: str, where: str = "") -> RequestRefused:
    told = f"`{where}{name}` cannot be honoured: {_NOT_IN_A_BATCH[name]}"
    return RequestRefused("unsupported_field", told, param=where + name)


def _refuse_other_model(model: Any, only_name: str, adapters: Collection[str]) -> None:
    if isinstance(model, str) and model in adapters:
        return
    others = sorted(set(adapters) - {only_name})
    beside = f" and the adapters {', '.join(map(repr, others[:10]))}" if others else ""
    raise RequestRefused("model_mismatch", f"this job serves {only_name!r}{beside} only", param="model")


def refuse_other_style(body: dict[str, Any], config: Any) -> None:
    """Refuse a row that wants its JSON in another style than the engine's; ``config`` says how that is.

    vLLM compiles all grammars in the style of the engine, and ignores what the row says of it.
    """
    constraint = body.get("structured_outputs") or {}
    for name in _OF_THE_ENGINE:
        has = getattr(config, name)
        if constraint.get(name) not in (None, has):
            raise RequestRefused(
                "unsupported_field",
                f"`structured_outputs.{name}` is {str(has).lower()} for all rows of this engine; leave it "
                "out, or set the engine argument structured_outputs_config",
                param=f"structured_outputs.{name}",
            )
    if constraint.get("whitespace_pattern") is not None:
        raise RequestRefused(
            "unsupported_field",
            "`structured_outputs.whitespace_pattern` cannot be honoured: vLLM ignores it; leave it out",
            param="structured_outputs.whitespace_pattern",
        )


def _refuse_media(body: dict[str, Any], media: Collection[Medium]) -> None:
    """Refuse a part that vLLM would fetch or decode, other than a file of ``media`` in the body itself."""
    messages = body.get("messages")
    if not (_holds_media(messages) or _holds_media(body.get("input"))):
        return
    if not media:
        raise RequestRefused("unsupported_content", "this model reads text parts only", param="messages")
    if has_non_text_content(list(_without(media, messages))) or _holds_media(body.get("input")):
        names = " and ".join(f"{one.name}s" for one in media)
        raise RequestRefused(
            "unsupported_content", f"messages can hold parts of text, and {names}, only", param="messages"
        )


def _without(media: Collection[Medium], messages: Any) -> Iterator[Any]:
    """The messages of all conversations, without the files of ``media`` that they hold themselves."""
    for _, conversation in conversations_of(messages):
        for message in conversation:
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list):
                yield {"content": [part for part in content if not _is_held(media, part)]}


def _is_held(media: Collection[Medium], part: Any) -> bool:
    """Whether a part is a file of ``media``, as dray's ingest and shard tasks write it, and nothing else."""
    form = next((form for form in FORMS if form.has(part)), None)
    if form is None or form.medium not in media or part.keys() != {"type", form.type}:
        return False
    held = part[form.type]
    return (
        isinstance(held, dict)
        and held.keys() == {"url"}
        and isinstance(held["url"], str)
        and is_data(held["url"])
    )


def _holds_media(messages: Any) -> bool:
    """Whether a conversation, or one of several, has a part that vLLM would fetch or decode."""
    if not isinstance(messages, list):
        return False
    return has_non_text_content(messages) or any(map(has_non_text_content, messages))


def _refuse_unknown(body: Any) -> None:
    """vLLM keeps unknown fields and ignores them; dray takes those alone that could not change an answer."""
    refuse_names(name for name, value in (body.model_extra or {}).items() if not _is_idle(name, value))
    response_format = getattr(body, "response_format", None)
    if response_format is not None and not isinstance(response_format, str):  # a name, for sound
        refuse_names(response_format.model_extra or (), "response_format.")


def settle(body: Any, given: dict[str, Any], default: str, adapters: Container[str]) -> None:
    """Refuse what vLLM would ignore of ``body``, which it read from ``given``, and name its adapter alone."""
    _refuse_unknown(body)
    # Checked before; None is the model itself to vLLM, which looks for no adapter then.
    body.model = adapter_of(given, default, adapters)


def _is_idle(name: str, value: Any) -> bool:
    """Whether a field that vLLM does not have makes no difference: 1 counts, and true or 1.0 do not."""
    defaults = (*OPENAI_DEFAULTS.get(name, ()), *DEFAULTS.get(name, ()))
    return name in WITHOUT_EFFECT or any(type(one) is type(value) and one == value for one in defaults)


def refuse_names(names: Iterable[str], where: str = "") -> None:
    """Refuse a row for ``names``, its unknown fields; without names, refuse nothing."""
    unknown = sorted(names)
    if unknown:
        listed = ", ".join(f"`{where}{name[:64]}`" for name in unknown[:5])
        raise RequestRefused("unknown_field", f"unknown body field {listed}", param=where + unknown[0][:64])
