"""Which small files of a model's folder engines read: configurations, templates, tokenizers of all kinds."""

from __future__ import annotations

import re
from collections.abc import Iterable

USUAL = (
    "config.json", "generation_config.json", "params.json", "quantize_config.json", "hf_quant_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "normalizer.json", "tekken.json", "tokenizer.model",
    "tokenizer.model.v3", "spiece.model", "spm.spm", "sentencepiece.bpe.model",
    "chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json",
    "video_preprocessor_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "bpe.codes", "sentence_roberta_config.json",
    "sentence_distilbert_config.json", "sentence_camembert_config.json", "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json", "sentence_xlnet_config.json",
)  # fmt: skip
"""The names that are tried where a folder cannot be listed. New ones go last: digests follow their order."""

TEMPLATES = "additional_chat_templates"
"""The folder of the chat templates that have names; an engine takes ``tool_use`` for rows with tools."""

USUAL_TEMPLATES = ("tool_use.jinja", "rag.jinja", "default.jinja")
"""The names that are tried of these, where a folder cannot be listed."""

_SMALL = re.compile(r".*\.(json|jinja|txt|model|spm|tiktoken|codes|tokenizer)|tokenizer\.model\.v\w+")
# Of transformers, SentencePiece, tiktoken and Mistral.
_TOKENIZER = re.compile(r"(tokenizer|vocab|merges|tekken).*|.*\.(model|spm|tiktoken|codes|tokenizer)")


def is_small(name: str) -> bool:
    """Whether a file of a model's folder is none of weights, and may be one that an engine reads."""
    return _SMALL.fullmatch(name) is not None


def is_tokenizer(name: str) -> bool:
    """Whether it belongs to a tokenizer of any kind."""
    return _TOKENIZER.fullmatch(name) is not None


def named_templates(names: Iterable[str]) -> list[str]:
    """The chat templates among the files of the folder :data:`TEMPLATES`, named from the model's folder."""
    found = (name for name in names if name.endswith(".jinja") and not name.startswith("."))
    return sorted(f"{TEMPLATES}/{name}" for name in found)
