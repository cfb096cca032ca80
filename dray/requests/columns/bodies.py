"""Which columns beside chat messages are fields of a request, where the user named no columns.

Lines such as ``{"messages": [...], "max_tokens": 3}`` are the bodies of requests without what is around them.
Each line is judged by itself: its place in the input does not matter. A text in the column ``system`` becomes
the system message, as in the rows of LLaMA-Factory and Anthropic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import isnan
from typing import Any

from dray.requests.columns.messages import parsed, plain
from dray.requests.columns.template import value_of
from dray.requests.precision import holds_rounded, writes_long
from dray.requests.row_shape import BodyFields
from dray.requests.validate import BadRow, check_text


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALWAYS = _names(
    """
    add_generation_prompt add_special_tokens allowed_token_ids bad_words best_of chat_template
    chat_template_kwargs continue_final_message frequency_penalty function_call functions guided_choice
    guided_grammar guided_json guided_regex ignore_eos include_reasoning include_stop_str_in_output
    length_penalty logit_bias logprob_token_ids logprobs max_completion_tokens max_tokens min_p min_tokens
    modalities n parallel_tool_calls presence_penalty prompt_logprobs reasoning_effort repetition_detection
    repetition_penalty response_format return_prompt_text return_token_ids return_token_offsets
    return_tokens_as_token_ids seed skip_special_tokens spaces_between_special_tokens stop stop_token_ids
    stream stream_interval stream_options structured_outputs temperature thinking_token_budget tool_choice
    tools top_k top_logprobs top_p truncate_prompt_tokens truncation_side use_beam_search web_search_options
    """
)
"""What is a field of a request beside messages, whatever else the rows hold. A test compares vLLM's own."""

BESIDE_OTHERS = _names(
    """
    audio cache_salt documents ec_transfer_params echo kv_transfer_params media_io_kwargs mm_payload
    mm_processor_kwargs model moderation priority request_id return_mm_kwargs routed_experts_prompt_start
    session_id suffix vllm_xargs watermarking
    """
)
"""What is one only in rows with one of those. In data sets ``model`` is the one that wrote the answer."""

OBJECTS = _names(
    "chat_template_kwargs functions logit_bias response_format structured_outputs tool_choice tools"
)
"""What is a list or an object. Data sets have it as JSON in a text, as columns have one type."""

SYSTEM = "system"
"""The column of system messages."""

ASIDE = _names(
    """
    documents enable_thinking extra_body guided_decoding_backend guided_whitespace_pattern max_new_tokens
    max_output_tokens stop_sequences system_prompt thinking
    """
)
"""What looks like a field, and is none of vLLM's, or none there: the user is told that it is left aside."""


def fields_among(rows: Collection[Collection[str]], *, generates: bool, nulls: bool) -> BodyFields:
    """The fields to take from rows, of which the first have these columns; ``nulls`` as there.

    Rows for what ``generates`` nothing have a system message alone.
    """
    names = frozenset((SYSTEM,))
    if generates:
        names |= ALWAYS
        # A table's columns are read before its rows are seen: none that would be of no use.
        if nulls or any(not ALWAYS.isdisjoint(columns) for columns in rows):
            names |= BESIDE_OTHERS
    fields = BodyFields(names=names, nulls=nulls)
    said = {name for columns in rows for name in _taken(columns, fields)}
    said |= {SYSTEM for columns in rows if SYSTEM in columns}
    return replace(fields, said=frozenset(said))


def with_fields(body: dict[str, Any], row: Mapping[str, Any], fields: BodyFields) -> dict[str, Any]:
    """``body`` with the row's own fields, or BadRow."""
    for name in _taken(row, fields):
        value = value_of(row, name, "missing_column")
        if name in OBJECTS and isinstance(value, str):
            value = _object(value, name)
        elif not fields.nulls:
            value = plain(value, name)
        if isinstance(value, float) and isnan(value):  # an empty cell, as in every other column
            value = None
        if fields.nulls or value is not None:
            body[name] = value
            _note(name, fields)
    return body


def system_of(row: Mapping[str, Any], fields: BodyFields) -> str | None:
    """What the row's column of system messages holds, or BadRow; None where there is none, or nothing."""
    if SYSTEM not in fields.names or SYSTEM not in row:
        return None
    value = value_of(row, SYSTEM, "missing_column")
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRow(
            "invalid_value",
            f"the column {SYSTEM!r}, which goes before the messages, holds no text in this row; write one, "
            "or take the messages alone with --messages-column",
            SYSTEM,
        )
    if not value.strip():
        return None
    _note(SYSTEM, fields)
    return check_text(value, SYSTEM)


def _object(value: str, name: str) -> Any:
    """What a text stands for: JSON, also of null; else the text itself, such as ``auto``."""
    text = value.strip()
    if text in ("", "null"):
        return None
    if text.startswith(("[", "{")):
        found = parsed(value, name, f"{name} with json.dumps")
        if holds_rounded(found) and writes_long(value):
            told = f"the column {name!r} holds a number of more than 64 bits in this row; write it as text"
            raise BadRow("number_too_large", told, name)
        return plain(found, name, nulls=True)
    return check_text(value, name)


def _taken(columns: Iterable[str], fields: BodyFields) -> list[str]:
    """The columns of a row that are fields of its request."""
    if ALWAYS.isdisjoint(columns):
        return []
    return [name for name in columns if name in fields.names and name != SYSTEM]


def _note(name: str, fields: BodyFields) -> None:
    if name not in fields.said:
        fields.late.add(name)
