"""Prompts into tokens by Mistral's own tokenizer, as vLLM 0.32 does where it takes its mode ``mistral``.

There is no chat template: mistral-common makes tokens of a conversation directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dray.errors import ConfigError
from dray.kinds import Body
from dray.planner.workload.conversations import conversation_of, template_arguments, tools_of
from dray.planner.workload.images import tokens_of, without_marks
from dray.planner.workload.prompts import Prompt, Rendered, Text, Unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILE = "\ue000"  # stands for an image while a conversation becomes tokens; no token holds more than it
_REASONS_FROM = 15  # the first version of the tokenizer that knows reasoning_effort
_CALL_ID = 9  # characters of a tool call's id that vLLM leaves, the last ones


def reads_mistrals(folder: Path, mode: str) -> bool:
    """Whether vLLM reads a folder's tokenizer with mistral-common (``vllm/tokenizers/registry.py``).

    ``mode`` is the engine argument ``tokenizer_mode``. ``auto`` decides by the files, also those of folders
    in it.
    """
    if mode != "auto":
        return mode == "mistral"
    tokenizers = ("tekken.json", "tokenizer.model.v*")
    return any(folder.rglob("consolidated*.safetensors")) and any(
        next(folder.rglob(name), None) is not None for name in tokenizers
    )


class MistralEncoder:
    """Mistral's tokenizer in a folder (``vllm/renderers/mistral.py``).

    Raises:
        ConfigError: mistral-common is not installed, or cannot load it.
    """

    def __init__(self, folder: str, image_tokens: int) -> None:
        try:
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
            from mistral_common.tokens.tokenizers.utils import get_one_valid_tokenizer_file

            files = [str(path) for path in Path(folder).iterdir()]
            self._mistral: Any = MistralTokenizer.from_file(get_one_valid_tokenizer_file(files))
        except Exception as error:  # noqa: BLE001  whatever files may provoke
            said = " ".join(str(error).split())[:200]
            raise ConfigError(f"{folder}: its Mistral tokenizer cannot be loaded ({said})") from None
        self._tokenizer = self._mistral.instruct_tokenizer.tokenizer
        self._version = int(self._tokenizer.version.value.partition("v")[2].partition("m")[0])
        self._image_tokens = image_tokens
        self._file = self._tokenizer.encode(f"a{_FILE}", bos=False, eos=False)[1:]

    def render(self, body: Body, answered: bool) -> Rendered:
        """The tokens of a conversation; raises Unreadable where vLLM or mistral-common refuses it."""
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        if body.get("chat_template_kwargs") is not None:
            raise Unreadable("Mistral's tokenizer takes no chat_template_kwargs")
        arguments = template_arguments(body, answered=answered)
        messages = conversation_of(body, parts=True)
        _check_end(messages[-1]["role"], arguments)
        files: list[str] = []
        for message in messages:
            _adapt(message, files)
        if self._version < _REASONS_FROM:
            arguments.pop("reasoning_effort", None)
        try:
            request = ChatCompletionRequest.from_openai(
                messages=messages,
                tools=tools_of(body),
                continue_final_message=arguments["continue_final_message"],
                reasoning_effort=arguments.get("reasoning_effort"),
            )
            tokens = self._mistral.encode_chat_completion(request).tokens
        except Exception as error:  # noqa: BLE001  it refuses with assertions and errors of several packages
            raise Unreadable(f"Mistral's tokenizer refuses it ({type(error).__name__})") from None
        return Rendered(self._with_files(tokens, files), images=len(files))

    def encode(self, prompts: Sequence[Prompt]) -> list[NDArray[np.uint32]]:
        """The tokens of each prompt."""
        return [
            np.array(self._tokenizer.encode(one.text, bos=one.special, eos=False), np.uint32)
            if isinstance(one, Text)
            else np.array(one, np.uint32)
            for one in prompts
        ]

    def _with_files(self, tokens: list[int], files: list[str]) -> list[int]:
        """The tokens, with those of each file in its place; at the end where none is found."""
        if not files:
            return tokens
        found: list[int] = []
        waiting, at = deque(files), 0
        while at < len(tokens):
            here = tokens[at : at + len(self._file)]
            if waiting and here == self._file:
                found += tokens_of(waiting.popleft(), self._image_tokens).tolist()
                at += len(here)
            else:
                found.append(tokens[at])
                at += 1
        for digest in waiting:
            found += tokens_of(digest, self._image_tokens).tolist()
        return found


def _check_end(last: str, arguments: Mapping[str, Any]) -> None:
    """Check the last message, like ``vllm/tokenizers/mistral.py``; raises Unreadable."""
    begins, continues = arguments["add_generation_prompt"], arguments["continue_final_message"]
    if (begins and continues) or (continues and last != "assistant") or (begins and last == "assistant"):
        raise Unreadable("the last message is not of the role that the request needs")


def _adapt(message: dict[str, Any], files: list[str]) -> None:
    """Change a message to what mistral-common takes; appends the digests of its files to ``files``."""
    content = message["content"]
    for part in content if isinstance(content, list) else ():
        part["text"], digests = without_marks(part["text"], _FILE)
        files += digests
    if isinstance(content, str):
        message["content"], digests = without_marks(content, _FILE)
        files += digests
    elif not content:
        message["content"] = None
    for call in message.get("tool_calls", ()):
        call["id"] = str(call.get("id"))[-_CALL_ID:]
    if "tool_call_id" in message:
        message["tool_call_id"] = str(message["tool_call_id"])[-_CALL_ID:]
