"""A tokenizer of single bytes and some special tokens, for models of random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def byte_tokenizer(special: Sequence[str], template: str) -> Any:
    """``special`` have the first ids, ``<|pad|>`` and ``<|end|>`` among them. Chats have the ``template``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(tokens)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    found = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|pad|>")
    found.chat_template = template
    return found
