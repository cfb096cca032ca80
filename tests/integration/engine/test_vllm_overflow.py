"""Rows that do not fit into vLLM's context are made to; and what sameness takes for granted of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.kinds import Overflow
from dray.requests.model import Outcome
from dray.requests.overflow import mark_of
from dray.requests.row_ids import with_index
from dray.requests.sameness import DEFAULTS, WITHOUT_EFFECT
from tests.support.engines import CONTEXT, NAME, Runner, answer_of

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=3)]

WANTED = 12
WORDS = 600  # of a token or more each

Policy = Callable[[Overflow], Runner]


@pytest.fixture
def policy(generation: Runner) -> Iterator[Policy]:
    """The engine under another policy; an engine of its own would cost a start."""
    fitter = generation.engine._serve._fitter
    before = fitter._policy

    def under(chosen: Overflow) -> Runner:
        fitter._policy = chosen
        return generation

    yield under
    fitter._policy = before


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    roles = ["user" if number % 2 == 0 else "assistant" for number in range(len(contents))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    return {"model": NAME, "messages": messages, "max_tokens": WANTED, "temperature": 0} | fields


def text_of(outcome: Outcome) -> str:
    choice = answer_of(outcome)["choices"][0]
    found: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return found


def words(count: int, word: str = "order") -> str:
    return " ".join([word] * count)


def test_what_does_not_fit_is_an_error_row_without_a_policy(generation: Runner) -> None:
    outcome = generation.one(chat(words(WORDS)))
    assert outcome.error_code == "context_length_exceeded"


def test_a_row_that_fits_is_answered_the_same_under_each_policy(policy: Policy) -> None:
    bodies = [chat("please help"), {"model": NAME, "prompt": "order", "max_tokens": WANTED, "temperature": 0}]
    plain = [outcome.response for outcome in policy("error").run(bodies)]
    for chosen in ("shorten", "cut-head", "cut-tail"):
        assert [outcome.response for outcome in policy(chosen).run(bodies)] == plain


@pytest.mark.parametrize("long", [480, 505])
def test_a_generation_is_shortened_to_what_fits(policy: Policy, long: int) -> None:
    asked = [
        chat(words(long), max_tokens=100.0),  # as pandas writes it where a row has none
        {"model": NAME, "prompt": words(long), "max_tokens": CONTEXT + 1},
    ]
    for outcome in policy("shorten").run([one | {"ignore_eos": True} for one in asked]):
        body = answer_of(outcome)
        assert body["usage"]["total_tokens"] == CONTEXT
        assert body["dray"] == {"overflow": "shortened", "max_tokens": CONTEXT - outcome.prompt_tokens}
        assert mark_of(outcome.response) == "shortened"
    assert policy("shorten").one(chat(words(WORDS))).error_code == "context_length_exceeded"


def test_the_oldest_messages_go_first(policy: Policy) -> None:
    system = {"role": "system", "content": "urgent"}
    full = chat(words(300), "late", words(250), "soon", "please help")
    full["messages"].insert(0, system)
    kept = {**full, "messages": [system, *full["messages"][3:]]}
    cut, alone = policy("cut-head").run([full, kept])
    assert text_of(cut) == text_of(alone)
    assert answer_of(cut)["dray"]["dropped_messages"] == 2
    assert answer_of(cut)["dray"]["dropped_tokens"] > 300
    assert mark_of(alone.response) is None


@pytest.mark.parametrize(("chosen", "left"), [("cut-head", "soon"), ("cut-tail", "late")])
def test_a_message_that_is_too_long_itself_loses_one_end_of_its_text(
    policy: Policy, chosen: Overflow, left: str
) -> None:
    text = f"{words(300, 'late')} {words(300, 'soon')}"
    outcome = policy(chosen).one(chat(text))
    assert outcome.prompt_tokens <= CONTEXT - WANTED
    assert outcome.prompt_tokens > CONTEXT - WANTED - 5, "no more is cut than needed"
    kept = text[-len(words(290, left)) :] if chosen == "cut-head" else text[: len(words(290, left))]
    assert set(kept.split()) == {left}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": text}]
    several = policy(chosen).one(chat("x") | {"messages": [{"role": "user", "content": parts}]})
    assert mark_of(several.response) == chosen


def test_plain_prompts_lose_tokens_at_one_end(policy: Policy) -> None:
    ids = [10 + number % 500 for number in range(WORDS)]
    room = CONTEXT - WANTED
    fields = {"model": NAME, "max_tokens": WANTED, "temperature": 0}
    kept: dict[Overflow, list[int]] = {"cut-head": ids[-room:], "cut-tail": ids[:room]}
    for chosen, left in kept.items():
        cut, alone = policy(chosen).run([fields | {"prompt": ids}, fields | {"prompt": left}])
        assert text_of(cut) == text_of(alone)
        assert answer_of(cut)["dray"] == {"overflow": chosen, "dropped_tokens": WORDS - room}
    several = policy("cut-head").one(fields | {"prompt": [words(WORDS), "please help"]})
    assert len(answer_of(several)["choices"]) == 2
    assert policy("cut-head").one(fields | {"prompt": ids, "max_tokens": CONTEXT}).error_code


def test_a_prompt_without_a_length_leaves_a_quarter_for_the_answer(policy: Policy) -> None:
    outcome = policy("cut-tail").one({"model": NAME, "prompt": words(WORDS), "max_tokens": None})
    assert outcome.prompt_tokens == CONTEXT - CONTEXT // 4


def test_a_long_embedding_input_is_cut(embedding: Runner) -> None:
    serve = embedding.engine._serve
    ids = [10 + number % 500 for number in range(WORDS)]
    with pytest.MonkeyPatch.context() as patch:
        for chosen, left in (("cut-head", ids[-CONTEXT:]), ("cut-tail", ids[:CONTEXT])):
            patch.setattr(serve, "_overflow", chosen)
            cut, alone = embedding.run([{"model": NAME, "input": ids}, {"model": NAME, "input": left}])
            assert answer_of(cut)["data"][0]["embedding"] == pytest.approx(
                answer_of(alone)["data"][0]["embedding"], abs=1e-3
            )
            assert (mark_of(cut.response), mark_of(alone.response)) == (chosen, None)


@pytest.mark.parametrize(("chosen", "template"), [("cut-head", "<|bos|> $A"), ("cut-tail", "$A <|end|>")])
def test_the_special_token_of_a_long_embedding_input_stays(
    embedding: Runner,
    lively_model: Path,
    chosen: Overflow,
    template: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The begin of a text was cut with the token before it, which a model with CLS pooling reads alone."""
    from tokenizers.processors import TemplateProcessing
    from vllm.tokenizers import get_tokenizer

    serve, tokenizer = embedding.engine._serve, get_tokenizer(str(lively_model))
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<|bos|>", "<|end|>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    text = f"{words(WORDS, 'late')} {words(WORDS, 'soon')}"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    head, tail = [tokenizer.bos_token_id, *ids[1 - CONTEXT :]], [*ids[: CONTEXT - 1], tokenizer.eos_token_id]
    monkeypatch.setattr(serve, "_overflow", chosen)
    monkeypatch.setattr(serve._client.renderer, "tokenizer", tokenizer)
    cut, alone = embedding.run([{"input": text}, {"input": head if chosen == "cut-head" else tail}])
    assert mark_of(cut.response) == chosen
    assert answer_of(cut)["data"][0]["embedding"] == pytest.approx(
        answer_of(alone)["data"][0]["embedding"], abs=1e-3
    )


def test_a_prompt_with_a_suffix_is_not_cut(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM puts text before a suffix, and cannot put tokens there."""
    runner = policy("cut-tail")
    renderer = runner.engine._client.renderer
    monkeypatch.setattr(renderer, "render_completion_suffix", lambda prompt, suffix: f"{suffix} {prompt}")
    body = {"model": NAME, "max_tokens": 3, "temperature": 0, "suffix": "late"}
    outcomes = runner.run([body | {"prompt": prompt} for prompt in ("order", words(WORDS))])
    assert [one.error_code for one in outcomes] == [None, "context_length_exceeded"]


def test_ids_of_real_answers_are_those_of_their_rows(generation: Runner, embedding: Runner) -> None:
    """What a row that follows another gets is what an engine would have given it."""
    tool = {
        "type": "function",
        "function": {"name": "refund", "parameters": {"type": "object", "properties": {}}},
    }
    asked = chat("help", tools=[tool], tool_choice={"type": "function", "function": {"name": "refund"}})
    bodies = [asked, chat("order"), {"model": NAME, "prompt": "order", "max_tokens": 3, "temperature": 0}]
    answers = generation.run([*bodies, *bodies])
    for old in range(3):
        first, second = answers[old].response, answers[old + 3].response
        assert first is not None
        assert with_index(first, old, old + 3) == second
    one, other = (outcome.response for outcome in embedding.run([{"model": NAME, "input": "order"}] * 2))
    assert one is not None
    assert with_index(one, 0, 1) == other


def test_the_values_that_say_nothing_are_vllms_own_defaults(generation: Runner) -> None:
    """Sameness takes a row with such a value, and one without the field, for the same."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest

    from dray.engine.vllm_adapter.kinds.serving_options import without_null_choice

    tool = {"type": "function", "function": {"name": "refund"}}
    plain_chat = {"messages": [{"role": "user", "content": "x"}]}
    cases: list[tuple[Any, dict[str, Any]]] = [
        (ChatCompletionRequest, plain_chat),
        (ChatCompletionRequest, {**plain_chat, "tools": [tool]}),
        (CompletionRequest, {"prompt": "x"}),
        (EmbeddingCompletionRequest, {"input": "x"}),
    ]
    for read, body in cases:
        plain = read.model_validate({**body})  # vLLM's validators change it
        assert not WITHOUT_EFFECT - {"user"} & read.model_fields.keys()
        for name, values in DEFAULTS.items():
            for value in values if name in read.model_fields else ():
                if name == "tools" and name in body:
                    continue
                given = read.model_validate(without_null_choice({**body, name: value}))
                assert _said(given) == _said(plain), f"{read.__name__}.{name} = {value!r}"


def _said(request: Any) -> Any:
    """All that vLLM makes of a request."""
    if not hasattr(request, "to_sampling_params"):
        return request.model_dump(exclude={"request_id"})
    penalties = {"frequency_penalty": 0.25, "presence_penalty": 0.5}
    sampling = request.to_sampling_params(16, {"temperature": 0.6, "top_p": 0.9, "top_k": 5, **penalties})
    sampling.structured_outputs = str(sampling.structured_outputs)
    kept = request.model_dump(exclude={*DEFAULTS, "request_id"})
    tools = getattr(request, "tools", None)
    return repr(sampling), kept, tools, request.tool_choice if tools else None
