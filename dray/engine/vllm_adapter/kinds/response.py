"""Rows for /v1/responses: vLLM's own classes read and answer them, without a server around.

vLLM keeps no response here, and has no tools of its own: what would need either is refused.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.renderers.online_renderer import OnlineRenderer

from dray.engine.vllm_adapter.client import StepClient
from dray.engine.vllm_adapter.fields import refuse_names
from dray.engine.vllm_adapter.kinds.response_lists import first_bad, read_in_turn, refuse_items
from dray.engine.vllm_adapter.kinds.serving_options import TemplateOptions, is_harmony, refuse_unread_calls
from dray.errors import RequestRefused
from dray.requests.model import Request
from dray.requests.row_ids import call_id

_NOT_IN_A_BATCH = {
    "background": "a batch has no background",
    "previous_response_id": "dray keeps no responses; give the whole conversation in `input`",
    "conversation": "dray keeps no conversations; give the whole one in `input`",
    "context_management": "no conversation is kept or made shorter",
    "prompt": "stored prompts are with OpenAI; give `instructions` and `input`",
    "previous_input_messages": "give the whole conversation in `input`",
}
_TOOLS = ("function", "custom")
_LOGPROBS = "message.output_text.logprobs"
_SUMMARIES = (None, "auto")

_read = TypeAdapter(ResponsesRequest).validate_python


class Responses:
    """vLLM's serving class for responses, as chat's ``options`` have it."""

    def __init__(
        self,
        client: StepClient,
        models: OpenAIServingModels,
        renderer: OnlineRenderer,
        template: TemplateOptions,
        options: dict[str, Any],
    ) -> None:
        self._is_harmony = is_harmony(client.model_config)
        self._tools = options
        serving = OpenAIServingResponses(
            client,
            models,
            renderer,
            request_logger=None,
            chat_template=template.text,
            chat_template_content_format=template.content_format,
            **options,
        )
        serving.enable_store = False  # whatever vLLM's environment variables say
        self.create = serving.create_responses

    def read(self, body: dict[str, Any]) -> Any:
        """The body in vLLM's class; a null is as if its field were not there."""
        self._refuse_unusable(body)
        known = ResponsesRequest.model_fields
        # A new object: vLLM's validators change it.
        given = {name: value for name, value in body.items() if value is not None or name not in known}
        try:
            read_in_turn(_read, given)
            read = _read(given)
        except ValidationError:
            number = first_bad(_read, body.get("input"))
            if number is None:
                raise
            told = f"input[{number}] has no form that vLLM takes; a message has `role` and `content`"
            raise RequestRefused("invalid_request", told, param=f"input[{number}]") from None
        _refuse_unknown_within(read)
        return read

    def _refuse_unusable(self, body: dict[str, Any]) -> None:
        """Refuse what vLLM would take and not honour, and whatever would make it fetch something."""
        if self._is_harmony:
            raise RequestRefused(
                "unsupported", "dray does not serve /v1/responses for gpt-oss; write /v1/chat/completions"
            )
        for name, reason in _NOT_IN_A_BATCH.items():
            if body.get(name):
                raise _unsupported(name, f"`{name}` cannot be honoured: {reason}")
        if body.get("truncation") not in (None, "disabled"):
            told = "`truncation` cannot be honoured: leave it out; --overflow cut-head is for all rows"
            raise _unsupported("truncation", told)
        refuse_items(body.get("input"))
        _refuse_logprobs(body)
        reasoning = body.get("reasoning")
        for name in ("summary", "generate_summary"):
            if isinstance(reasoning, dict) and reasoning.get(name) not in _SUMMARIES:
                told = f"`reasoning.{name}` cannot be honoured: models here make no summaries; leave it out"
                raise _unsupported(f"reasoning.{name}", told)
        _refuse_other_tools(body)
        refuse_unread_calls(body, self._tools)


def dumped_response(request: Request, answer: Any) -> bytes:
    """A response in JSON. What would change from run to run is set: ids, the time, what was in a cache."""
    answer.created_at = 0
    for number, item in enumerate(answer.output):
        item.id = f"{item.id.partition('_')[0]}_{request.index}_{number}"
        if hasattr(item, "call_id"):
            item.call_id = call_id(item.call_id, request.index, number)
    details = answer.usage.input_tokens_details
    details.cached_tokens = details.cache_write_tokens = 0
    dumped: bytes = answer.__pydantic_serializer__.to_json(answer, by_alias=True)
    return dumped


def _refuse_other_tools(body: dict[str, Any]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(tools, list) or not tools:
        return
    for tool in tools:
        sort = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(sort, str) and sort not in _TOOLS:
            told = f"the tool {sort[:64]!r} needs a server beside the model; dray takes functions alone"
            raise _unsupported("tools", told)
    sort = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(sort, str) and sort not in _TOOLS:
        told = f"`tool_choice` of the type {sort[:64]!r} cannot be honoured"
        raise _unsupported("tool_choice", told)


def _refuse_logprobs(body: dict[str, Any]) -> None:
    include = body.get("include") or []
    others = [one for one in include if one != _LOGPROBS] if isinstance(include, list) else []
    if others:
        told = f"`include` cannot be honoured but for {_LOGPROBS!r}: {str(others[0])[:64]!r}"
        raise _unsupported("include", told)
    if body.get("top_logprobs") and _LOGPROBS not in include:
        told = f"`top_logprobs` goes with `include`: [{_LOGPROBS!r}]; without it vLLM gives none"
        raise RequestRefused("invalid_request", told, param="top_logprobs")


def _refuse_unknown_within(body: ResponsesRequest) -> None:
    """Refuse fields of objects that vLLM keeps, and ignores."""
    for name in ("text", "reasoning"):
        refuse_names(getattr(getattr(body, name), "model_extra", None) or (), f"{name}.")
    if body.text is not None:
        refuse_names(getattr(body.text.format, "model_extra", None) or (), "text.format.")


def _unsupported(field: str, told: str) -> RequestRefused:
    return RequestRefused("unsupported_field", told, param=field)
