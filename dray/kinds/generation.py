"""Chats and completions: kinds whose answers a model generates."""

from __future__ import annotations

from dray.kinds.kind import Body, EngineKind, Kind, OutputColumn, conversation, count_prompts

LENGTH_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""The fields of bodies that bound the tokens of an answer; the first one wins, as in vLLM."""

_CUT = (b'"finish_reason":"length"', b'"reason":"max_output_tokens"')


def _chat_body(prompt: str) -> Body:
    return conversation(prompt, None)


def _chat_prompts(body: Body) -> tuple[str, int]:
    return "messages", 1


def _completion_body(prompt: str) -> Body:
    return {"prompt": prompt}


def _completion_prompts(body: Body) -> tuple[str, int]:
    return "prompt", count_prompts(body.get("prompt"))


def _simulated_chat(body: Body, text: str, digest: str) -> Body:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return {"object": "chat.completion", "choices": [choice]}


def _simulated_completion(body: Body, text: str, digest: str) -> Body:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "length"}]}


def _text(body: Body) -> str | None:
    """The text of the first choice, that of a response's messages, or that of a sound."""
    if body.get("object") == "response":
        return _text_of_output(body["output"])
    choices = body.get("choices")
    if not choices:
        spoken: str | None = body.get("text")
        return spoken
    message = choices[0].get("message")
    found: str | None = choices[0].get("text") if message is None else message.get("content")
    return found


def _text_of_output(output: list[Body]) -> str | None:
    """All texts of a response's messages; None where the model called tools alone."""
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts) if parts else None


def finish_reason(body: Body) -> str | None:
    """Why the first choice ended. A response says that it is whole, or not."""
    if body.get("object") == "response":
        return "length" if body["status"] == "incomplete" else "stop"
    choices = body.get("choices")
    found: str | None = choices[0].get("finish_reason") if choices else None
    return found


def was_cut(response: bytes) -> bool:
    """Whether an answer, as JSON without spaces, ended at its limit of tokens; no text can look like that."""
    return any(mark in response for mark in _CUT)


GENERATION = EngineKind(
    name="generation",
    does="generates",
    serving="dray.engine.vllm_adapter.kinds.serving:GenerationServing",
    generates=True,
    splits_prompts=True,
)
TEXT_COLUMN = OutputColumn(name="text", type="text", read=_text)

CHAT = Kind(
    name="chat",
    url="/v1/chat/completions",
    also=("/chat/completions",),
    engine=GENERATION,
    texts=("messages",),
    body=_chat_body,
    conversation=conversation,
    sees_and_hears=True,
    spelled={"max_output_tokens": "max_tokens"},
    prompts=_chat_prompts,
    proof={"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0},
    simulated=_simulated_chat,
    columns=(TEXT_COLUMN,),
)
COMPLETION = Kind(
    name="completion",
    url="/v1/completions",
    also=("/completions",),
    engine=GENERATION,
    texts=("prompt",),
    body=_completion_body,
    templated=False,
    spelled=dict.fromkeys(("max_completion_tokens", "max_output_tokens"), "max_tokens"),
    prompts=_completion_prompts,
    # Token ids need neither a chat template nor a tokenizer that can read this text.
    proof={"prompt": [1, 2, 3, 4], "max_tokens": 4, "temperature": 0},
    simulated=_simulated_completion,
    columns=(TEXT_COLUMN,),
)
