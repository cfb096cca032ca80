"""The grammars of rows as vLLM would compile them, for a look before it does."""

from __future__ import annotations

from typing import Any

from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.request import get_structured_output_key
from vllm.v1.structured_output.utils import choice_as_grammar, grammar_is_likely_lark

from dray.engine.grammars import Grammar, Grammars

_LOOKED_AT = {"xgrammar", "auto"}
_KINDS = {
    StructuredOutputOptions.JSON: "json",
    StructuredOutputOptions.REGEX: "regex",
    StructuredOutputOptions.STRUCTURAL_TAG: "tag",
}


def grammars_of(config: Any, tokenizer: Any, seconds: int) -> Grammars | None:
    """Limits for the grammars of an engine; None where another library than xgrammar compiles them."""
    chosen = config.structured_outputs_config
    if chosen.backend not in _LOOKED_AT or tokenizer is None:
        return None

    def described() -> str:
        backend = XgrammarBackend(
            config, tokenizer=tokenizer, vocab_size=config.model_config.get_vocab_size()
        )
        # The compiler does not give its tokenizer back, but all that it compiles does.
        text: str = backend.compiler.compile_grammar('root ::= "a"').tokenizer_info.serialize_json()
        return text

    separators = (",", ":") if chosen.disable_any_whitespace else None
    return Grammars(described, seconds=seconds, separators=separators)


def grammar_of(params: StructuredOutputsParams | None) -> Grammar | None:
    """The grammar that a row asks for; None where it has none, or one at whose form vLLM will find fault."""
    if params is None or params.all_constraints_none():
        return None
    try:
        kind, text = get_structured_output_key(params)
        if kind is StructuredOutputOptions.JSON_OBJECT:
            return None
        if kind is StructuredOutputOptions.CHOICE:
            choice = Grammar("choice", text)
            return choice if choice.plain else Grammar("grammar", choice_as_grammar(params.choice))
        if kind is StructuredOutputOptions.GRAMMAR:
            return Grammar("lark" if grammar_is_likely_lark(text) else "grammar", text)
        return Grammar(_KINDS[kind], text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
