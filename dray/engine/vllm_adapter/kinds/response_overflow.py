"""Responses that do not fit into the model's context, made to fit as chats are.

Their items take the place of messages.
"""

from __future__ import annotations

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from dray.engine.vllm_adapter.overflow import Body, Fitter, Whole, short
from dray.kinds import Kind
from dray.requests.overflow import Overflow


class _Response(Whole, ResponsesRequest):  # type: ignore[misc]  # vLLM has no types
    """A response as long as it is."""


class ResponseFitter(Fitter):
    """Makes responses fit. ``instructions`` stay; a call leaves with the user's message before it."""

    async def fit(self, url: str, body: Body) -> tuple[Body, Overflow | None]:
        """The body to be asked, and what was done to it."""
        given = body.get("input")
        if "messages" in body:  # an unknown field here: the row will be refused
            return body, None
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        chat = {name: value for name, value in body.items() if name != "input" and value is not None}
        fitted, overflow = await super().fit(Kind.CHAT.url, chat | {"messages": items})
        return (body, None) if overflow is None else (body | _with_input(fitted), overflow)

    async def _chat(self, body: Body) -> list[list[int]]:
        request = _Response.model_validate(_with_input(short(body)))
        rendered = await self._renderer.render_responses(request)
        return [list(rendered.engine_input["prompt_token_ids"])]


def _with_input(chat: Body) -> Body:
    others = {name: value for name, value in chat.items() if name != "messages"}
    return others | {"input": chat["messages"]}
