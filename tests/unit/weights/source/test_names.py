"""Which files of a model's folder are fetched beside its weights."""

from __future__ import annotations

import pytest

from dray.weights.source.names import USUAL, is_small, is_tokenizer

pytestmark = pytest.mark.unit


def test_the_names_that_are_tried_are_fetched_where_they_are_listed() -> None:
    assert [name for name in USUAL if not is_small(name)] == []
    assert len(set(USUAL)) == len(USUAL)


@pytest.mark.parametrize(
    ("name", "small", "tokenizer"),
    [
        ("tokenizer.model.v3", True, True),
        ("tokenizer.model.v7m1", True, True),
        ("spm.spm", True, True),
        ("qwen.tiktoken", True, True),
        ("vocab.txt", True, True),
        ("tekken.json", True, True),
        ("config.json", True, False),
        ("chat_template.jinja", True, False),
        ("model.safetensors", False, False),
        ("modeling.py", False, False),
        ("pytorch_model.bin", False, False),
    ],
)
def test_what_is_small_and_what_is_a_tokenizers(name: str, small: bool, tokenizer: bool) -> None:
    assert (is_small(name), is_tokenizer(name)) == (small, tokenizer)
