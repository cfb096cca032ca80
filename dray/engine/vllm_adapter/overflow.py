"""Rows that do not fit into the model's context, made to fit as the job says: by vLLM's own renderer.

A row is measured where its size leaves a doubt. What is asked of the context is the prompt, and the tokens
that the row wants for its answer. A row that names no number wants one token, and gets a quarter of the
context where its prompt is cut.

Of a chat, ``cut-head`` drops the oldest messages, from one message of the user to the next. The system's
stay, and so does the user's last one; where that is too long by itself, it loses the begin of its text.
``cut-tail`` cuts the end of that text. A plain prompt loses tokens; the special one that a tokenizer puts
before it (or behind it) stays. What cannot be made to fit is refused as without a policy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.renderers.params import TokenizeParams

from dray.engine.vllm_adapter.errors import is_the_engines
from dray.kinds import LENGTH_FIELDS, Kind
from dray.kinds import Overflow as Policy
from dray.requests.media.parts import parts_of
from dray.requests.overflow import Overflow
from dray.requests.precision import whole

Body = dict[str, Any]
Side = Literal["head", "tail"]

_ANSWER_SHARE = 4
_TRIES = 8
_KEPT_ROLES = ("system", "developer")


class Whole:
    """A body of vLLM's as long as it is."""

    def build_tok_params(self, model_config: Any) -> Any:
        """The request's own parameters, without a limit."""
        found = super().build_tok_params(model_config)  # type: ignore[misc]  # of the class beside this one
        return replace(found, max_total_tokens=None)


class _Chat(Whole, ChatCompletionRequest):  # type: ignore[misc]  # vLLM has no types
    """A chat as long as it is."""


class _Completion(Whole, CompletionRequest):  # type: ignore[misc]  # vLLM has no types
    """A completion as long as it is."""


class SpecialKept(TokenizeParams):  # type: ignore[misc]  # vLLM has no types
    """How vLLM makes tokens of a prompt of a pooling model; where it cuts them, the special token stays.

    vLLM's own cut of the begin drops the token that a model with CLS pooling reads.
    """

    @classmethod
    def of(cls, params: Any) -> SpecialKept:
        """Parameters like ``params``, but for the cut."""
        return cls(**vars(params))

    def _token_truncation(self, tokenizer: Any, tokens: Any) -> Any:
        cut = super()._token_truncation(tokenizer, tokens)
        if tokenizer is None or not isinstance(tokens, list):
            return cut
        side: Side = "head" if (self.truncation_side or tokenizer.truncation_side) == "left" else "tail"
        return _cut_tokens(tokens, len(cut), side, set(tokenizer.all_special_ids))


class Fitter:
    """Makes bodies fit, by the policy of the job."""

    def __init__(self, policy: Policy, renderer: Any, model_config: Any) -> None:
        self._policy = policy
        self._renderer = renderer
        self._model_config = model_config
        self._limit: int = model_config.max_model_len
        self._overhead: int | None = None

    def over(self, renderer: Any) -> Fitter:
        """The same, measuring by another renderer."""
        return Fitter(self._policy, renderer, self._model_config)

    async def fit(self, url: str, body: Body) -> tuple[Body, Overflow | None]:
        """The body to be asked, and what was done to it; the same body where it fits, or cannot be helped."""
        try:
            return await self._fit(url, body)
        except BaseException as error:  # whatever is wrong with a body, vLLM says when it is asked
            if is_the_engines(error):
                raise
            return body, None

    async def _fit(self, url: str, body: Body) -> tuple[Body, Overflow | None]:
        if self._policy == "error" or body.get("truncate_prompt_tokens") is not None:
            return body, None
        is_chat = url == Kind.CHAT.url
        name, wanted = _wanted(body)
        if await self._surely_fits(body, wanted or 1, is_chat):
            return body, None
        prompts = await (self._chat(body) if is_chat else self._completion(body))
        longest = max(map(len, prompts))
        if longest + (wanted or 1) <= self._limit:
            return body, None
        if self._policy == "shorten":
            return self._shortened(body, name, prompts)
        answer = wanted if wanted is not None else self._limit // _ANSWER_SHARE
        room, side = self._limit - answer, _side(self._policy)
        if room < 1:
            return body, None
        if is_chat:
            return await self._cut_chat(body, prompts[0], room, side)
        return self._cut_prompts(body, prompts, room, side)

    async def _surely_fits(self, body: Body, wanted: int, is_chat: bool) -> bool:
        """A token holds a byte at least; what a chat template adds is measured once for each message.

        A file has as many tokens as its processor makes of it, whatever its bytes.
        """
        messages = body.get("messages")
        if not is_chat:
            return len(orjson.dumps(body.get("prompt"))) + wanted + 2 <= self._limit
        if not isinstance(messages, list):
            return True
        if any(parts_of(messages)):
            return False
        if self._overhead is None:
            smallest = {"messages": [{"role": "user", "content": "."}]}
            self._overhead = len((await self._chat(smallest))[0])
        added = self._overhead * (len(messages) + 1)
        return len(orjson.dumps(body)) + added + wanted <= self._limit

    def _shortened(self, body: Body, name: str, prompts: Sequence[list[int]]) -> tuple[Body, Overflow | None]:
        """vLLM reduces the number for each prompt to what the context leaves: it must not be over that."""
        least, most = (self._limit - size(map(len, prompts)) for size in (max, min))
        if least < 1:
            return body, None
        return {**body, name: most}, Overflow(done="shortened", max_tokens=least)

    # -- cutting --------------------------------------------------------------------------------

    def _cut_prompts(
        self, body: Body, prompts: Sequence[list[int]], room: int, side: Side
    ) -> tuple[Body, Overflow | None]:
        # Tokens have no text to repeat, or to put before a suffix.
        if body.get("echo") or body.get("suffix") is not None:
            return body, None
        special = set(self._renderer.renderer.tokenizer.all_special_ids)
        cut = [_cut_tokens(prompt, room, side, special) for prompt in prompts]
        lost = sum(map(len, prompts)) - sum(map(len, cut))
        fitted = {**body, "prompt": cut[0] if len(cut) == 1 else cut}
        return fitted, Overflow(done=_done(side), dropped_tokens=lost)

    async def _cut_chat(
        self, body: Body, prompt: list[int], room: int, side: Side
    ) -> tuple[Body, Overflow | None]:
        messages: list[Any] = body["messages"]
        dropped = 0
        if side == "head":
            messages, dropped, size = await self._without_oldest(body, room)
            if size <= room:
                lost = len(prompt) - size
                done = Overflow(done="cut-head", dropped_tokens=lost, dropped_messages=dropped)
                return {**body, "messages": messages}, done
        found = await self._without_text({**body, "messages": messages}, room, side)
        if found is None:
            return body, None
        fitted, size = found
        lost = len(prompt) - size
        return fitted, Overflow(done=_done(side), dropped_tokens=lost, dropped_messages=dropped)

    async def _without_oldest(self, body: Body, room: int) -> tuple[list[Any], int, int]:
        """The messages from the first message of the user on that fits, or from the last one.

        Also how many were dropped, and how long the rest is.
        """
        messages: list[Any] = body["messages"]
        kept = next(
            (n for n, one in enumerate(messages) if one.get("role") not in _KEPT_ROLES), len(messages)
        )
        starts = [n for n, one in enumerate(messages) if n >= kept and one.get("role") == "user"]
        starts = [n for n in starts if n > kept] or [max(kept, len(messages) - 1)]
        low, high = 0, len(starts) - 1  # the fewest messages that must go, by halves
        while low < high:
            middle = (low + high) // 2
            size = await self._size(body, messages[:kept] + messages[starts[middle] :])
            low, high = (low, middle) if size <= room else (middle + 1, high)
        rest = messages[:kept] + messages[starts[low] :]
        return rest, len(messages) - len(rest), await self._size(body, rest)

    async def _without_text(self, body: Body, room: int, side: Side) -> tuple[Body, int] | None:
        """The body with as little text as needed cut from the user's last message, and its length."""
        messages: list[Any] = body["messages"]
        users = [n for n, one in enumerate(messages) if one.get("role") == "user"]
        if not users:
            return None
        text, put = _text_of(messages[users[-1]])
        ends = self._token_ends(text)
        drop = await self._size(body, messages) - room
        for _ in range(_TRIES):
            if drop >= len(ends):
                return None
            left = text[ends[drop - 1] :] if side == "head" else text[: ends[-drop - 1]]
            tried = [*messages[: users[-1]], put(left), *messages[users[-1] + 1 :]]
            size = await self._size(body, tried)
            if size <= room:
                return {**body, "messages": tried}, size
            drop += size - room
        return None

    def _token_ends(self, text: str) -> list[int]:
        """Where each token of a text ends, in characters; about there, where the tokenizer does not say."""
        tokenizer = self._renderer.renderer.tokenizer
        if getattr(tokenizer, "is_fast", False):
            found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return [end for _, end in found["offset_mapping"]]
        count = max(1, len(tokenizer.encode(text, add_special_tokens=False)))
        return [round(len(text) * number / count) for number in range(1, count + 1)]

    # -- measuring ------------------------------------------------------------------------------

    async def _size(self, body: Body, messages: list[Any]) -> int:
        return len((await self._chat({**body, "messages": messages}))[0])

    async def _chat(self, body: Body) -> list[list[int]]:
        return await self._tokens(self._renderer.render_chat, _Chat.model_validate(short(body)), second=True)

    async def _completion(self, body: Body) -> list[list[int]]:
        request = _Completion.model_validate(short(body))
        return await self._tokens(self._renderer.render_completion, request, second=False)

    async def _tokens(
        self, render: Callable[[Any], Awaitable[Any]], request: Any, *, second: bool
    ) -> list[list[int]]:
        rendered = await render(request)  # an ErrorResponse has no parts: vLLM says it again when it is asked
        inputs = rendered[1] if second else rendered
        return [list(one["prompt_token_ids"]) for one in inputs]


def short(body: Body) -> Body:
    """The body without its length, which vLLM holds against the context."""
    return {name: value for name, value in body.items() if name not in LENGTH_FIELDS}


def _wanted(body: Body) -> tuple[str, int | None]:
    """The field that says how long the answer may be, and what it says."""
    for name in LENGTH_FIELDS:
        wanted = whole(body.get(name))
        if type(wanted) is int:
            return name, wanted
    return "max_tokens", None


def _side(policy: Policy) -> Side:
    return "head" if policy == "cut-head" else "tail"


def _done(side: Side) -> Literal["cut-head", "cut-tail"]:
    return "cut-head" if side == "head" else "cut-tail"


def _cut_tokens(prompt: list[int], room: int, side: Side, special: set[int]) -> list[int]:
    if len(prompt) <= room:
        return prompt
    if side == "head":
        first = prompt[:1] if prompt[0] in special and room > 1 else []
        return first + prompt[len(prompt) - room + len(first) :]
    last = prompt[-1:] if prompt[-1] in special and room > 1 else []
    return prompt[: room - len(last)] + last


def _text_of(message: Any) -> tuple[str, Callable[[str], Any]]:
    """The text of a message, the longest of several parts; and the message with another one in its place."""
    content = message["content"]
    if isinstance(content, str):
        return content, lambda text: {**message, "content": text}
    texts = [n for n, part in enumerate(content) if isinstance(part.get("text"), str)]
    place = max(texts, key=lambda n: len(content[n]["text"]))

    def put(text: str) -> Any:
        part = {**content[place], "text": text}
        return {**message, "content": [*content[:place], part, *content[place + 1 :]]}

    return content[place]["text"], put
