"""Names in a row's ``chat_template_kwargs`` that vLLM would drop: neither template nor parser reads them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

from vllm.renderers.hf import HfRenderer, resolve_chat_template, resolve_chat_template_kwargs

from dray.errors import RequestRefused

_FIELD = "chat_template_kwargs"
_RESERVED = frozenset({"chat_template", "tokenize"})  # vLLM and dray refuse these, in words of their own
_KEPT = 64  # answers; rows of a job name the same few


class TemplateNames:
    """Which names vLLM reads, as it resolves them itself.

    ``text`` is the chat template of the engine arguments (None: the model's own). ``parser`` is vLLM's class
    for tool calls and reasoning, or None: some read names that no template has. Other renderers than that of
    Hugging Face's templates have their own ways, and are left to vLLM.
    """

    def __init__(self, renderer: Any, text: str | None, parser: Any = None) -> None:
        self._renderer, self._text, self._parser = renderer, text, parser
        self._unread = lru_cache(_KEPT)(self._find_unread)

    def refuse_unread(self, body: dict[str, Any]) -> None:
        """Refuse a row with such a name.

        Raises:
            RequestRefused: tells the first one.
        """
        given = body.get(_FIELD)
        if not isinstance(given, dict) or not given or not isinstance(self._renderer, HfRenderer):
            return
        name = self._unread(frozenset(given), bool(body.get("tools")))
        if name is not None:
            shown = f"{_FIELD}.{name[:64]}"
            told = f"unknown body field `{shown}`: the chat template does not read it"
            raise RequestRefused("unknown_field", told, param=shown)

    def _find_unread(self, names: frozenset[str], has_tools: bool) -> str | None:
        tokenizer = self._renderer.get_tokenizer()
        template = resolve_chat_template(
            tokenizer, self._text, [{}] if has_tools else None, model_config=self._renderer.model_config
        )
        if template is None:  # vLLM says so
            return None
        asked = dict.fromkeys(names - _RESERVED)
        read = resolve_chat_template_kwargs(tokenizer, template, asked)
        return next((name for name in sorted(asked.keys() - read) if not self._is_a_parsers(name)), None)

    def _is_a_parsers(self, name: str) -> bool:
        return self._sources is None or any(f"{quote}{name}{quote}" in self._sources for quote in "\"'")

    @cached_property
    def _sources(self) -> str | None:
        """The modules of the parsers, which list no names; None where one has no source."""
        held = (getattr(self._parser, f"{one}_parser_cls", None) for one in ("reasoning", "tool"))
        parsers = [one for one in (self._parser, *held) if isinstance(one, type)]
        modules = {part.__module__ for one in parsers for part in _parts(one)} - {"builtins"}
        try:
            return "\n".join(inspect.getsource(sys.modules[one]) for one in sorted(modules))
        except (KeyError, OSError, TypeError):
            return None


def _parts(parser: type) -> Iterator[type]:
    """A parser's class, those that it inherits from, and those that it is an adapter for."""
    for one in parser.__mro__:
        yield one
        for held in vars(one).values():
            if isinstance(held, type):
                yield from held.__mro__
