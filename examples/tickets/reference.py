"""The plain transformers answers of a model: greedy, float32. What every other engine is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tickets.generate import MAX_ANSWER_TOKENS

MODEL = Path(__file__).parent / "model"


def load(folder: Path = MODEL) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model in float32, and its tokenizer."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(folder)


@torch.inference_mode()
def greedy_answers(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    *,
    batch_size: int = 100,
) -> list[str]:
    """The answers to ``texts`` as user messages, in order, of at most ``MAX_ANSWER_TOKENS`` tokens each."""
    prompts = [_prompt(tokenizer, text) for text in texts]
    shortest_first = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    answers = [""] * len(prompts)
    for start in range(0, len(prompts), batch_size):
        members = shortest_first[start : start + batch_size]
        batch = tokenizer.pad(
            {"input_ids": [prompts[at] for at in members]}, padding_side="left", return_tensors="pt"
        )
        tokens = model.generate(**batch, do_sample=False, max_new_tokens=MAX_ANSWER_TOKENS)
        tokens = tokens[:, batch["input_ids"].shape[1] :]
        for at, answer in zip(members, tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True):
            answers[at] = answer
    return answers


def _prompt(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    message = {"role": "user", "content": text}
    rendered = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    return ids
