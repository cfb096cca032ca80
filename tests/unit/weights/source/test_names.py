"""Which files of a model's folder are fetched beside its weights."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from dray.weights.source.names import USUAL, is_small, is_tokenizer

pytestmark = pytest.mark.unit


def test_the_names_that_are_tried_are_fetched_where_they_are_listed() -> None:
    assert [name for name in USUAL if not is_small(name)] == []
    assert len(set(USUAL)) == len(USUAL)


_NAMES = re.compile(r"^(?:\w*VOCAB_FILES_NAMES|    vocab_files_names) = \{(.*?)\}", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(find_spec("transformers") is None, reason="reads transformers' own source")
def test_all_files_of_tokenizers_that_transformers_knows_are_fetched() -> None:
    """Without ``bpe.codes``, PhoBERT's tokenizer could not be loaded."""
    found = find_spec("transformers")
    assert found is not None
    assert found.origin is not None
    sources = (file.read_text() for file in Path(found.origin).parent.rglob("tokenization_*.py"))
    texts = [names for source in sources for names in _NAMES.findall(source)]
    names = {name for text in texts for name in re.findall(r':\s*"([^"]+)"', text)}
    assert {"bpe.codes", "spiece.model", "vocab.json", "source.spm"} <= names
    assert [name for name in sorted(names) if not is_small(name)] == []


@pytest.mark.parametrize(
    ("name", "small", "tokenizer"),
    [
        ("tokenizer.model.v3", True, True),
        ("tokenizer.model.v7m1", True, True),
        ("spm.spm", True, True),
        ("qwen.tiktoken", True, True),
        ("vocab.txt", True, True),
        ("tekken.json", True, True),
        ("bpe.codes", True, True),
        ("config.json", True, False),
        ("chat_template.jinja", True, False),
        ("model.safetensors", False, False),
        ("modeling.py", False, False),
        ("pytorch_model.bin", False, False),
    ],
)
def test_what_is_small_and_what_is_a_tokenizers(name: str, small: bool, tokenizer: bool) -> None:
    assert (is_small(name), is_tokenizer(name)) == (small, tokenizer)
