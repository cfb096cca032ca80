"""Lists of a row that do not fit the buffers of vLLM's model runner for GPUs (its second one).

That runner raises in the engine's core when such a row is added, and the engine ends. On a CPU vLLM has its
first runner, without these limits.
"""

from __future__ import annotations

from typing import Any

from dray.errors import RequestRefused


def refuse_beyond_buffers(params: Any, config: Any) -> None:
    """Refuse a row with such a list. ``params`` are vLLM's of the row, as the engine's core gets them.

    Raises:
        RequestRefused: names the field, how long it is, and the longest that the runner takes.
    """
    lengths = {
        "allowed_token_ids": len(params.allowed_token_ids or ()),
        "logit_bias": len(params.logit_bias or ()),
        "stop_token_ids": len(params.all_stop_token_ids) if params.min_tokens else 0,
        "bad_words": sum(map(len, params.bad_words_token_ids or ())),
    }
    if not any(lengths.values()) or not config.use_v2_model_runner:
        return
    for name, most in _limits().items():
        if lengths[name] > most:
            told = _WORDS[name].format(lengths[name])
            raise RequestRefused(
                "request_too_large",
                f"`{name}` {told}; the engine's GPU runner takes at most {most:,}",
                param=name,
            )


_WORDS = {
    "allowed_token_ids": "has {:,} tokens",
    "logit_bias": "has {:,} tokens",
    "stop_token_ids": "has {:,} tokens, with those that end this model's answers, beside `min_tokens`",
    "bad_words": "has {:,} tokens in all, each word with and without a blank before it",
}


def _limits() -> dict[str, int]:
    from vllm import envs
    from vllm.v1.worker.gpu.sample import logit_bias

    return {
        "allowed_token_ids": logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS,
        "logit_bias": logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS,
        "stop_token_ids": logit_bias.MAX_NUM_STOP_TOKEN_IDS,
        "bad_words": envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS,
    }
