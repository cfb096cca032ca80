"""vLLM through dray gives what plain transformers give, and honours the fields of the contract."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from dray.kinds import Kind
from dray.requests.model import Outcome
from tests.support.engines import NAME, Runner, answer_of
from tests.support.tiny_model import sentence

pytestmark = pytest.mark.integration

ANSWER_TOKENS = 12


def text(outcome: Outcome, choice: int = 0) -> str:
    found = answer_of(outcome)["choices"][choice]
    content: str = found["text"] if "text" in found else found["message"]["content"]
    return content


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    } | fields


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0} | fields


class Reference:
    """Greedy answers of plain transformers in float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, ids: list[int], tokens: int = ANSWER_TOKENS) -> list[int]:
        with self.torch.inference_mode():
            out = self.model.generate(
                self.torch.tensor([ids]), max_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        found: list[int] = out[0, len(ids) :].tolist()
        return found

    def text(self, ids: list[int], tokens: int = ANSWER_TOKENS) -> str:
        """Without a last character that is not whole: vLLM waits for its other bytes."""
        decoded: str = self.tokenizer.decode(self.answer(ids, tokens), skip_special_tokens=True)
        return decoded.rstrip("\ufffd")

    def chat_ids(self, content: str) -> list[int]:
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = self.tokenizer(rendered, add_special_tokens=False).input_ids
        return ids

    def logprobs(self, ids: list[int]) -> Any:
        with self.torch.inference_mode():
            return self.model(self.torch.tensor([ids])).logits[0].log_softmax(-1)


@pytest.fixture(scope="module")
def reference(lively_model: Path) -> Reference:
    return Reference(lively_model)


def prompts(count: int) -> list[str]:
    rng = random.Random(5)
    return [sentence(rng, rng.randint(1, 40)) for _ in range(count)]


def test_greedy_answers_are_those_of_transformers(generation: Runner, reference: Reference) -> None:
    texts = prompts(25)
    outcomes = generation.run(
        [chat(t, return_token_ids=True) for t in texts]
        + [completion(t, return_token_ids=True) for t in texts]
    )
    ids = [reference.chat_ids(t) for t in texts] + [reference.tokenizer(t).input_ids for t in texts]
    assert [answer_of(outcome)["choices"][0]["token_ids"] for outcome in outcomes] == [
        reference.answer(prompt) for prompt in ids
    ]
    assert [text(outcome) for outcome in outcomes] == [reference.text(prompt) for prompt in ids]
    assert [outcome.prompt_tokens for outcome in outcomes] == [len(prompt) for prompt in ids]
    assert len({text(outcome) for outcome in outcomes}) > 30, "answers vary, or this test shows nothing"


def test_bytes_do_not_depend_on_the_batch(generation: Runner) -> None:
    bodies = [chat(t) if number % 2 else completion(t) for number, t in enumerate(prompts(20))]
    together = [outcome.response for outcome in generation.run(bodies)]
    again = [outcome.response for outcome in generation.run(bodies)]
    alone = [generation.one(body).response for body in bodies[:6]]
    assert together == again
    assert [_without_id(a) for a in alone] == [_without_id(t) for t in together[:6]]
    first = answer_of(generation.one(bodies[1]))
    assert first["created"] == 0
    assert first["id"] == "chatcmpl-0"
    assert first["model"] == NAME
    assert answer_of(generation.one(chat("help", request_id="mine")))["id"] == "chatcmpl-mine"


def _without_id(response: bytes | None) -> dict[str, Any]:
    assert response is not None
    return {name: value for name, value in json.loads(response).items() if name != "id"}


def test_several_answers_and_seeds(generation: Runner) -> None:
    sampled = {"temperature": 1.5, "n": 3, "seed": 7, "max_tokens": 8, "ignore_eos": True}
    bodies = [chat("please help", **sampled), chat("please help", **sampled), completion("please", **sampled)]
    first, second, third = generation.run([*bodies, chat("please help", **sampled | {"seed": 8})])[:3]
    other = generation.one(chat("please help", **sampled | {"seed": 8}))
    texts = [text(first, choice) for choice in range(3)]
    assert texts == [text(second, choice) for choice in range(3)]
    assert texts != [text(other, choice) for choice in range(3)]
    assert len(set(texts)) > 1
    assert len(answer_of(third)["choices"]) == 3
    assert first.completion_tokens == answer_of(first)["usage"]["completion_tokens"]


def test_stop_texts_and_limits(generation: Runner, reference: Reference) -> None:
    for prompt in prompts(30):
        whole = reference.text(reference.tokenizer(prompt).input_ids)
        if len(whole) > 8 and whole.isascii():
            break
    stop = whole[4:7]
    cut, kept, minimum, limited = generation.run(
        [
            completion(prompt, stop=[stop]),
            completion(prompt, stop=stop, include_stop_str_in_output=True),
            completion(prompt, stop_token_ids=[5], min_tokens=ANSWER_TOKENS, ignore_eos=True),
            chat(prompt, max_tokens=9, max_completion_tokens=3, ignore_eos=True),
        ]
    )
    assert text(cut) == whole[: whole.index(stop)]
    assert text(kept) == whole[: whole.index(stop) + len(stop)]
    assert answer_of(cut)["choices"][0]["finish_reason"] == "stop"
    assert minimum.completion_tokens == ANSWER_TOKENS
    assert limited.completion_tokens == 3


def test_logprobs_are_those_of_transformers(generation: Runner, reference: Reference) -> None:
    prompt = "please help with my late order"
    ids = reference.tokenizer(prompt).input_ids
    found = generation.one(
        completion(
            prompt,
            logprobs=2,
            max_tokens=3,
            ignore_eos=True,
            return_token_ids=True,
            return_tokens_as_token_ids=True,
        )
    )
    choice = answer_of(found)["choices"][0]
    tokens = choice["token_ids"]
    expected = reference.logprobs(ids + tokens)
    for place, (token, value) in enumerate(zip(tokens, choice["logprobs"]["token_logprobs"], strict=True)):
        assert math.isclose(value, expected[len(ids) - 1 + place][token], abs_tol=1e-3)
    assert all(len(top) == 2 for top in choice["logprobs"]["top_logprobs"])
    as_chat = answer_of(generation.one(chat(prompt, logprobs=True, top_logprobs=3)))["choices"][0]
    assert all(len(entry["top_logprobs"]) == 3 for entry in as_chat["logprobs"]["content"])


def test_echo_and_prompt_forms(generation: Runner, reference: Reference) -> None:
    prompt = "please help with my order"
    ids = reference.tokenizer(prompt).input_ids
    plain, echoed, by_ids, several, by_id_lists, scored = generation.run(
        [
            completion(prompt),
            completion(prompt, echo=True),
            completion(ids),
            completion([prompt, "the laptop screen is broken"]),
            completion([ids, ids[:2]]),
            completion(prompt, echo=True, logprobs=1, max_tokens=1),
        ]
    )
    assert text(echoed) == prompt + text(plain)
    assert text(by_ids) == text(plain)
    assert text(several, 0) == text(plain)
    assert text(several, 1) == reference.text(reference.tokenizer("the laptop screen is broken").input_ids)
    assert [choice["index"] for choice in answer_of(several)["choices"]] == [0, 1]
    assert several.prompt_tokens == answer_of(several)["usage"]["prompt_tokens"]
    assert text(by_id_lists, 0) == text(plain)
    values = answer_of(scored)["choices"][0]["logprobs"]["token_logprobs"]
    expected = reference.logprobs(ids)
    assert values[0] is None
    assert math.isclose(values[1], expected[0][ids[1]], abs_tol=1e-3)


def test_biases_and_bans(generation: Runner, reference: Reference) -> None:
    firsts = {prompt: reference.answer(reference.tokenizer(prompt).input_ids, 1)[0] for prompt in prompts(30)}
    words = {prompt: reference.tokenizer.decode([first]) for prompt, first in firsts.items()}
    prompt = next(prompt for prompt, word in words.items() if word.strip().isalpha() and word.isascii())
    first, word = firsts[prompt], words[prompt]
    pushed, pulled, only, banned = generation.run(
        [
            completion(prompt, logit_bias={"77": 100}, max_tokens=4, return_token_ids=True),
            completion(prompt, logit_bias={str(first): -100}, max_tokens=1, return_token_ids=True),
            completion(prompt, allowed_token_ids=[70, 71], max_tokens=6, return_token_ids=True),
            completion(prompt, bad_words=[word], max_tokens=1, return_token_ids=True),
        ]
    )
    assert answer_of(pushed)["choices"][0]["token_ids"] == [77] * 4
    assert answer_of(pulled)["choices"][0]["token_ids"] != [first]
    assert set(answer_of(only)["choices"][0]["token_ids"]) <= {70, 71}
    assert answer_of(banned)["choices"][0]["token_ids"] != [first]


def test_a_started_answer_is_continued(generation: Runner, reference: Reference) -> None:
    messages = [{"role": "user", "content": "help"}, {"role": "assistant", "content": "please"}]
    continued = generation.one(
        chat("", messages=messages, continue_final_message=True, add_generation_prompt=False)
    )
    rendered = "<|user|>help<|end|><|assistant|>please"
    ids = reference.tokenizer(rendered, add_special_tokens=False).input_ids
    assert text(continued) == reference.text(ids)
    assert continued.prompt_tokens == len(ids)


def test_template_kwargs_reach_the_template(generation: Runner) -> None:
    moody = chat("help", chat_template_kwargs={"mood": "please"}, return_prompt_text=True)
    assert answer_of(generation.one(moody))["prompt_text"] == "please<|user|>help<|end|><|assistant|>"


def test_templates_get_the_day_of_the_job(generation: Runner) -> None:
    """Not the clock's: rows before midnight, or on a node in another time zone, had other prompts."""
    asked = chat("help", chat_template_kwargs={"clock": "%d %b %Y %H:%M:%S "}, return_prompt_text=True)
    answers = generation.run([asked, asked | {"max_tokens": 1}])
    expected = "03 Feb 2001 00:00:00 <|user|>help<|end|><|assistant|>"
    assert [answer_of(answer)["prompt_text"] for answer in answers] == [expected] * 2


def test_names_that_the_template_does_not_read_are_refused(generation: Runner, embedding: Runner) -> None:
    """vLLM would drop them, and render the prompt as if the row had none."""
    known, unknown = ({"chat_template_kwargs": {name: "please"}} for name in ("mood", "moood"))
    asked = {"messages": [{"role": "user", "content": "help"}]}
    for runner, body, kind in (
        (generation, chat("help"), Kind.CHAT),
        (generation, {"input": "help", "max_output_tokens": 4}, Kind.RESPONSE),
        (embedding, asked, Kind.EMBEDDING),
    ):
        answered, refused = runner.run([body | known, body | unknown], kind)
        assert (answered.error_code, refused.error_code) == (None, "unknown_field")
        assert "`chat_template_kwargs.moood`" in (refused.error_message or "")


def test_usage_and_timings(generation: Runner) -> None:
    shared = "customer order refund " * 100
    first = generation.one(chat(shared, ignore_eos=True))
    second = generation.one(chat(shared, ignore_eos=True))
    assert first.prompt_tokens == second.prompt_tokens > 100
    assert first.cached_tokens == 0
    assert 0 < second.cached_tokens < second.prompt_tokens
    assert second.completion_tokens == ANSWER_TOKENS
    assert 0 <= second.queue_seconds <= second.first_token_seconds <= second.total_seconds < 60
    assert second.first_token_seconds > 0
    assert first.response == second.response, "what was cached is not in the answer"
    usage = answer_of(second)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (second.prompt_tokens, ANSWER_TOKENS)
