"""A text that is decoded at once is the text that vLLM decodes token by token, whatever the tokens."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.tiny_model import SPECIAL, sentence

sampling: Any
theirs: Any
ours: Any

pytestmark = pytest.mark.integration

TEXTS = ["a b c d e", "naïve café", "日本語のテキスト", "🙂🙃 emoji", "  two  spaces ", "it's. Is it?"]


def _bytes() -> Any:
    """As Llama 3, Qwen and GPT have it: a text is the bytes of its tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([*TEXTS, *map(_sentence, range(20))], trainer)
    return tokenizer


def _sentence(seed: int) -> str:
    import random

    return sentence(random.Random(seed), 20)


def _fallback() -> Any:
    """As Llama 2, Mistral and Gemma have it: words with a mark for the space, and bytes for all else."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghi.'?é", "▁the", "▁is", "日"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token=SPECIAL[0]))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _word_pieces() -> Any:
    """As BERT has it."""
    pieces = [*SPECIAL, *"abcde.,'?", "##a", "##b", "##s", "it", "n't", "'s", "日"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL[0]))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    """Imported by the process of pytest that runs these tests, and not by each that collects them."""
    global sampling, theirs, ours
    sampling = pytest.importorskip("vllm.sampling_params")
    theirs = pytest.importorskip("vllm.v1.engine.detokenizer")
    ours = importlib.import_module("dray.engine.vllm_adapter.detokenizer")


@pytest.fixture(scope="module", params=[_bytes, _fallback, _word_pieces])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_object=request.param(), eos_token="<|end|>")
    assert made.vocab_size > 15
    return made


def _request(prompt: list[int], **more: Any) -> Any:
    given = {"stop": [], "min_tokens": 0, "include_stop_str_in_output": False, "skip_special_tokens": True,
             "spaces_between_special_tokens": True,
             "output_kind": sampling.RequestOutputKind.FINAL_ONLY}  # fmt: skip
    params = SimpleNamespace(**(given | more))
    return SimpleNamespace(request_id="r", prompt_token_ids=prompt, sampling_params=params)


@pytest.mark.heavy(one_of=3)
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_the_text_is_vllms(tokenizer: Any, data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=24)
    texts = st.sampled_from(TEXTS).map(lambda text: tokenizer(text)["input_ids"])
    prompt, answer = data.draw(ids | texts), data.draw(ids | texts)
    request = _request(
        prompt,
        skip_special_tokens=data.draw(st.booleans()),
        include_stop_str_in_output=data.draw(st.booleans()),
    )
    stopped = data.draw(st.booleans())
    told = data.draw(st.integers(0, len(answer)))  # the first output, and the last
    steps = theirs.FastIncrementalDetokenizer(tokenizer, request)
    whole = ours.WholeText(tokenizer, request)
    for number, token in enumerate(answer):
        steps.update([token], stopped and number == len(answer) - 1)
    whole.update(answer[:told], stopped and told == len(answer))
    whole.update(answer[told:], stopped)
    assert whole.get_next_output_text(True, False) == steps.get_next_output_text(True, False)
    assert whole.output_token_ids == steps.output_token_ids
    assert whole.num_output_tokens() == steps.num_output_tokens()


@pytest.mark.parametrize(
    "asked",
    [
        {"stop": ["x"]},
        {"output_kind": "DELTA"},
        {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    ],
)
def test_what_needs_steps_keeps_them(tokenizer: Any, asked: dict[str, Any]) -> None:
    if "output_kind" in asked:
        asked = {"output_kind": sampling.RequestOutputKind[asked["output_kind"]]}
    chosen = ours._Detokenizers.from_new_request
    assert isinstance(chosen(tokenizer, _request([1])), ours.WholeText)
    assert isinstance(chosen(tokenizer, _request([1], **asked)), theirs.FastIncrementalDetokenizer)


def test_without_a_tokenizer_there_is_no_text(tokenizer: Any) -> None:
    found = ours._Detokenizers.from_new_request(None, _request([1]))
    found.update([2, 3], False)
    assert (found.get_next_output_text(True, False), found.output_token_ids) == ("", [2, 3])
