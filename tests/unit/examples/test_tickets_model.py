"""The committed model folder: small, whole, and its tokenizer the one that the script trains."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from examples.tickets import generate
from examples.tickets.generate import MAX_ANSWER_TOKENS, Ticket, held_out_tickets

pytestmark = pytest.mark.unit

MODEL = Path(generate.__file__).parent / "model"
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="module")
def held_out() -> list[Ticket]:
    return held_out_tickets()


def test_the_weights_are_one_safetensors_file_of_float32_of_at_most_8_mb() -> None:
    weights = [path for path in MODEL.iterdir() if path.suffix not in {".json"}]
    assert [path.name for path in weights] == ["model.safetensors"]
    assert weights[0].stat().st_size <= 8_000_000
    with weights[0].open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    assert {tensor["dtype"] for tensor in header.values()} == {"F32"}


def test_the_configuration_is_one_that_vllm_takes() -> None:
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["head_dim"] == 32, "vLLM's CPU attention takes 32, 64, 80, 96, ..."
    assert (config["dtype"], config["max_position_embeddings"]) == ("float32", 512)
    assert config["vocab_size"] == TOKENIZER.get_vocab_size()
    end = TOKENIZER.token_to_id("<|end|>")
    generation = json.loads((MODEL / "generation_config.json").read_text(encoding="utf-8"))
    assert config["eos_token_id"] == generation["eos_token_id"] == end


def test_tickets_are_20_to_200_tokens_and_answers_fit(held_out: list[Ticket]) -> None:
    lengths = [len(TOKENIZER.encode(ticket.text).ids) for ticket in held_out]
    assert min(lengths) >= 20
    assert max(lengths) <= 200
    answers = [len(TOKENIZER.encode(ticket.label.as_json()).ids) for ticket in held_out]
    assert max(answers) < MAX_ANSWER_TOKENS


@given(st.text(max_size=80))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens() -> None:
    assert TOKENIZER.encode("KX-204871 and 1234").tokens == [
        *("K", "X", "-", "2", "0", "4", "8", "7", "1"),
        *("Ġand", "Ġ", "1", "2", "3", "4"),
    ]


@pytest.mark.heavy(one_of=3)
def test_the_tokenizer_is_the_one_the_script_trains() -> None:
    from examples.tickets.vocabulary import TOKENIZER_TICKETS, train_tokenizer  # loads transformers

    fresh = train_tokenizer(generate.training_tickets(TOKENIZER_TICKETS), max_length=512)
    assert fresh.get_vocab() == TOKENIZER.get_vocab()
