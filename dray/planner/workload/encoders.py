"""Prompts into tokens: by the model's tokenizer, or by their bytes where that is enough.

transformers is imported where a tokenizer is loaded, and nowhere else: in processes that do nothing but count
(:mod:`dray.planner.workload.worker`). They hide PyTorch, whose import takes 5 of 7 seconds, and which a
tokenizer does not need.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dray.errors import ConfigError
from dray.imports import without
from dray.kinds import Body
from dray.planner.workload.conversations import conversation_of, plain_text, template_arguments, tools_of
from dray.planner.workload.images import IMAGE_TOKENS, count_images, tokens_with_images
from dray.planner.workload.mistral import MistralEncoder, reads_mistrals
from dray.planner.workload.prompts import Prompt, Rendered, Text, Unreadable
from dray.weights.source.configuration import has_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNIT_BYTES = 4
"""Bytes of UTF-8 that stand for a token where no tokenizer is asked: about the mean in English text."""

_INSTALL = "install dray with its extra cpu or gpu (README, Install)"


class Encoder(Protocol):
    """Renders conversations, and turns prompts into tokens."""

    def render(self, body: Body, answered: bool) -> str | Rendered:
        """The text that the model reads, or its tokens; raises Unreadable."""

    def encode(self, prompts: Sequence[Prompt]) -> list[NDArray[np.uint32]]:
        """The tokens of each prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerAt:
    """A tokenizer in a folder, and how vLLM is told to use it: engine arguments of the same names."""

    folder: str
    chat_template: str | None = None
    chat_template_content_format: str = "auto"
    image_tokens: int = IMAGE_TOKENS
    tokenizer_mode: str = "auto"

    def missing(self) -> str | None:
        """What is missing for it, as far as a look tells; None where it can be tried."""
        if find_spec("transformers") is None:
            return (
                f"no tokenizer can be read, as transformers is missing; it comes with the engine: {_INSTALL}"
            )
        folder = Path(self.folder)
        if not folder.is_dir():
            return f"{self.folder}: no such folder, so there is no tokenizer in it"
        if not has_tokenizer(folder):
            return f"{self.folder}: no tokenizer in it (tokenizer.json, tokenizer_config.json, ...)"
        return None

    def encoder(self) -> Encoder:
        """Load it.

        Raises:
            ConfigError: transformers is not installed, or there is no tokenizer that it can load.
        """
        if (missing := self.missing()) is not None:
            raise ConfigError(missing)
        if reads_mistrals(Path(self.folder), self.tokenizer_mode):
            return MistralEncoder(self.folder, self.image_tokens)
        return ModelEncoder(self)


@dataclass(frozen=True, slots=True)
class Bytes:
    """No tokenizer: each 4 bytes of a prompt count as one token. Prefixes are the same as with any other."""

    unit: int = field(default=UNIT_BYTES, init=False)
    image_tokens: int = IMAGE_TOKENS

    def encoder(self) -> Encoder:
        """An encoder by bytes."""
        return ByteEncoder(self.image_tokens)


Tokens = TokenizerAt | Bytes


class ByteEncoder:
    """Each 4 bytes of UTF-8 are a token; token ids stay what they are."""

    def __init__(self, image_tokens: int = IMAGE_TOKENS) -> None:
        self._image_tokens = image_tokens

    def render(self, body: Body, answered: bool) -> str:
        """The texts of a conversation, without a template."""
        return plain_text(body)

    def encode(self, prompts: Sequence[Prompt]) -> list[NDArray[np.uint32]]:
        """The tokens of each prompt."""
        return [
            self._units(one.text) if isinstance(one, Text) else np.array(one, np.uint32) for one in prompts
        ]

    def _units(self, text: str) -> NDArray[np.uint32]:
        return tokens_with_images(text, _units, self._image_tokens) if count_images(text) else _units(text)


def _units(text: str) -> NDArray[np.uint32]:
    """UTF-8 in words of 4 bytes; the last one is filled up."""
    data = text.encode(errors="replace")
    return np.frombuffer(data + bytes(-len(data) % UNIT_BYTES), np.uint32)


class ModelEncoder:
    """The tokenizer and chat template of a model, as vLLM uses them (``vllm/renderers/hf.py``, 0.32)."""

    def __init__(self, at: TokenizerAt) -> None:
        self._tokenizer = load_tokenizer(at.folder)
        self._template = _template_text(at.chat_template)
        self._format = at.chat_template_content_format
        self._image_tokens = at.image_tokens
        self._formats: dict[str, bool] = {}

    def render(self, body: Body, answered: bool) -> str:
        """Apply the chat template; raises Unreadable where the template refuses, or there is none."""
        tools, arguments = tools_of(body), template_arguments(body, answered=answered)
        try:
            template = self._tokenizer.get_chat_template(self._template, tools=tools)
        except ValueError:
            raise Unreadable("the model has no chat template") from None
        messages = conversation_of(body, parts=self._takes_parts(template))
        try:
            rendered = self._tokenizer.apply_chat_template(
                _known_roles(messages, template),
                tools=tools,
                chat_template=template,
                tokenize=False,
                **arguments,
            )
        except Exception as error:  # noqa: BLE001  a template is a program of the model's: it may raise anything
            raise Unreadable(f"the chat template refuses it ({type(error).__name__})") from None
        return str(rendered)

    def encode(self, prompts: Sequence[Prompt]) -> list[NDArray[np.uint32]]:
        """The tokens of each prompt: one call for many texts, and so little work in Python."""
        found: dict[int, Any] = {
            place: self._with_images(prompt.text) if isinstance(prompt, Text) else prompt
            for place, prompt in enumerate(prompts)
            if not isinstance(prompt, Text) or count_images(prompt.text)
        }
        for special in (True, False):
            texts = {
                place: prompt.text
                for place, prompt in enumerate(prompts)
                if isinstance(prompt, Text) and prompt.special is special and place not in found
            }
            if texts:
                encoded = self._tokenizer(
                    list(texts.values()),
                    add_special_tokens=special,
                    return_attention_mask=False,
                    return_token_type_ids=False,
                    verbose=False,
                )
                found.update(zip(texts, encoded["input_ids"], strict=True))
        return [np.array(found[place], np.uint32) for place in range(len(prompts))]

    def _with_images(self, text: str) -> NDArray[np.uint32]:
        def encode(piece: str) -> NDArray[np.uint32]:
            return np.array(self._tokenizer(piece, add_special_tokens=False)["input_ids"], np.uint32)

        return tokens_with_images(text, encode, self._image_tokens)

    def _takes_parts(self, template: str) -> bool:
        if self._format != "auto":
            return self._format == "openai"
        if template not in self._formats:
            self._formats[template] = _loops_over_content(template)
        return self._formats[template]


def load_tokenizer(folder: str) -> Any:
    """A folder's tokenizer, by transformers alone: also one that Mistral's files could be read to.

    Raises:
        ConfigError: transformers cannot load it.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        with without("torch", "tensorflow", "jax", "flax"):
            from transformers import AutoTokenizer
        # With mistral_format left out, transformers 5 takes mistral-common wherever there is a tekken.json.
        return AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, mistral_format=False
        )
    except Exception as error:  # noqa: BLE001  whatever files may provoke
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"{folder}: its tokenizer cannot be loaded ({said})") from None


def _template_text(template: str | None) -> str | None:
    """A template, or the content of the file that holds it."""
    if template is None or "{" in template or not Path(template).is_file():
        return template
    return Path(template).read_text()


def _known_roles(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Developers' messages become the system's where the template does not know that role."""
    if all(one["role"] != "developer" for one in messages) or "developer" in template:
        return messages
    renamed = [
        {name: value for name, value in one.items() if name != "tools"} | {"role": "system"}
        if one["role"] == "developer"
        else one
        for one in messages
    ]
    systems = [one for one in renamed if one["role"] == "system"]
    if systems == renamed[:1]:
        return renamed
    texts = (_joined(one["content"]) for one in systems)
    first = {"role": "system", "content": "\n\n".join(filter(None, texts))}
    return [first, *(one for one in renamed if one["role"] != "system")]


def _joined(content: Any) -> str:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def _loops_over_content(template: str) -> bool:
    """Whether a template takes a message's content apart: then vLLM gives it lists of parts."""
    from jinja2 import TemplateError, nodes
    from transformers.utils import chat_template_utils

    try:
        parsed = chat_template_utils._compile_jinja_template(template).environment.parse(template)
    except (TemplateError, AttributeError):
        return False
    return any(_is_content(loop.iter) for loop in parsed.find_all(nodes.For))


def _is_content(node: Any) -> bool:
    from jinja2 import nodes

    while isinstance(node, nodes.Filter | nodes.Test) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name == "content"
