"""What decides a model's prompts comes along from an address: its named chat templates."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from dray.weights.source.configuration import configuration_of
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.checkpoints import llama
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers"),
]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorProcess]:
    (tmp_path / "root/hub/org/m").mkdir(parents=True)
    found = EmulatorProcess(tmp_path / "root")
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    yield found
    found.stop()


@pytest.mark.heavy
def test_a_row_with_tools_has_the_prompt_of_the_whole_folder(hub: EmulatorProcess) -> None:
    from transformers import AutoTokenizer

    def prompt(folder: Path) -> str:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
        row = [{"role": "user", "content": "hi"}]
        return str(tokenizer.apply_chat_template(row, tools=tools, tokenize=False))

    model = llama(hub.root / "hub/org/m")
    tokenizer = byte_tokenizer(("<|pad|>", "<|end|>"), "plain: {{ messages[0].content }}")
    with_tools = "{{ tools | length }} tool: {{ messages[0].content }}"
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": with_tools}
    tokenizer.save_pretrained(model)
    assert prompt(model) == "1 tool: hi"
    with configuration_of("hf://org/m") as folder:
        assert prompt(folder) == "1 tool: hi"
