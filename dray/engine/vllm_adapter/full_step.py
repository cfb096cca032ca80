"""A full step of a fresh engine, on made-up prompts: it takes now what memory its steps need.

A starting vLLM measures that, gives it back, and takes it again with its first full step. Of engines that
share a GPU, the next one profiles meanwhile, and counts what the first one takes as its own.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

_TOKEN = 0  # every vocabulary has it, and it stands for no image


def shapes_of(seqs: int, tokens: int, longest: int) -> list[int]:
    """The lengths of prompts that fill a step of ``seqs`` sequences and ``tokens`` tokens.

    Each leaves room for one token more of the ``longest`` sequence. A step with most sequences also has most
    logits.
    """
    count = min(seqs, tokens)
    length, more = divmod(tokens, count)
    return [max(1, min(length + (number < more), longest - 1)) for number in range(count)]


def take_full_step(engine: Any) -> None:
    """Have an ``LLMEngine`` compute its largest step. Nothing for models that do not go on with a prompt.

    Raises:
        Exception: the engine's own, whose step failed: it is dead.
    """
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input

    config = engine.vllm_config
    model, scheduled = config.model_config, config.scheduler_config
    if model.runner_type != "generate" or model.is_encoder_decoder or model.max_model_len < 2:
        return
    shapes = shapes_of(scheduled.max_num_seqs, scheduled.max_num_batched_tokens, model.max_model_len)
    once = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    for number, length in enumerate(shapes):
        name = f"dray-full-step-{number}"  # as salt: no prompt finds another one's tokens in the cache
        try:
            engine.add_request(name, tokens_input([_TOKEN] * length, cache_salt=name), once)
        except (ValueError, TypeError) as error:
            logger.warning("no full step before rows come (%s): the model takes no such prompt", error)
            break
    while engine.has_unfinished_requests():
        engine.step()
