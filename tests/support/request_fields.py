"""Random bodies of chats and completions that set every sampling field vLLM takes, alone and together."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.support.tiny_model import sentence

_SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["calm", "angry"]}, "refund": {"type": "boolean"}},
    "required": ["mood", "refund"],
    "additionalProperties": False,
}
_TOKENS = range(97, 122)  # lower case letters: the tiny model has a token for each byte


def _token(rng: random.Random) -> int:
    return rng.choice(_TOKENS)


# Each field that both kinds of request take, and how to draw a value.
_FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "temperature": lambda rng: rng.choice([0, 0.3, 1.0, 1.7]),
    "top_p": lambda rng: rng.choice([0.2, 0.9, 1.0]),
    "top_k": lambda rng: rng.choice([-1, 1, 5, 40]),
    "min_p": lambda rng: rng.choice([0.0, 0.1, 0.5]),
    "presence_penalty": lambda rng: rng.choice([-1.0, 0.5, 2.0]),
    "frequency_penalty": lambda rng: rng.choice([-1.0, 0.5, 2.0]),
    "repetition_penalty": lambda rng: rng.choice([0.8, 1.2]),
    "n": lambda rng: rng.choice([1, 2, 3]),
    "stop": lambda rng: rng.choice(["e", ["a", "th"], ["zzz"]]),
    "stop_token_ids": lambda rng: [_token(rng)],
    "include_stop_str_in_output": lambda rng: rng.random() < 0.5,
    "ignore_eos": lambda rng: rng.random() < 0.5,
    "min_tokens": lambda rng: rng.choice([0, 3]),
    "skip_special_tokens": lambda rng: rng.random() < 0.5,
    "spaces_between_special_tokens": lambda rng: rng.random() < 0.5,
    "logit_bias": lambda rng: {str(_token(rng)): rng.choice([-100, -2.5, 5])},
    "bad_words": lambda rng: [rng.choice(["a", "refund"])],
    "allowed_token_ids": lambda rng: [*_TOKENS],
    "prompt_logprobs": lambda rng: rng.choice([0, 2]),
    "return_token_ids": lambda rng: rng.random() < 0.5,
    "add_special_tokens": lambda rng: rng.random() < 0.5,
    "priority": lambda rng: 0,
    "user": lambda rng: "somebody",
}
_CONSTRAINTS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "mood", "schema": _SCHEMA}}},
    {"structured_outputs": {"choice": ["calm", "angry"]}},
    {"structured_outputs": {"regex": "[a-f]{3,6}"}},
    {"structured_outputs": {"json": _SCHEMA}},
]


def random_bodies(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """So many bodies. Each samples with a seed of its own, so that its answer does not hang on the others."""
    return [_body(rng, number) for number in range(count)]


def _body(rng: random.Random, number: int) -> dict[str, Any]:
    text = f"{sentence(rng, rng.randint(3, 30))} {number}"
    body: dict[str, Any] = {"max_tokens": rng.randint(1, 30), "seed": number}
    for field in rng.sample(sorted(_FIELDS), rng.randint(0, 6)):
        body[field] = _FIELDS[field](rng)
    if rng.random() < 0.15:
        body |= rng.choice(_CONSTRAINTS)
    return body | (_chat(rng, text) if rng.random() < 0.5 else _completion(rng, text))


def _chat(rng: random.Random, text: str) -> dict[str, Any]:
    logprobs = {"logprobs": True, "top_logprobs": rng.choice([0, 3])} if rng.random() < 0.2 else {}
    return {"messages": [{"role": "user", "content": text}]} | logprobs


def _completion(rng: random.Random, text: str) -> dict[str, Any]:
    prompts: list[Any] = [text, [text, text[::-1]], [5 + number for number in range(20)]]
    extra: dict[str, Any] = {"logprobs": rng.choice([0, 3])} if rng.random() < 0.2 else {}
    if rng.random() < 0.1:
        extra["echo"] = True
    return {"prompt": rng.choice(prompts)} | extra
