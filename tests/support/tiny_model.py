"""Write a small random-weight Llama with a real tokenizer: the model of the speed tests.

About 2.5 million parameters, seeded, so that two calls give the same files. Random weights answer
nonsense, always to the last token allowed: just right for measuring the machinery around them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = (  # noqa: SIM905  a list of words reads better as text
    "order customer refund invoice shipping delay account password printer laptop screen battery charge "
    "update install error payment card receipt address change cancel return exchange warranty manual "
    "please help today yesterday urgent soon waiting number broken missing late wrong never again thanks "
    "the a my your our this that with without for from to and or but not is was has have will can could "
).split()
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def sentence(rng: random.Random, words: int) -> str:
    """Return ``words`` words of plausible filler."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


def write_tiny_model(directory: Path, *, seed: int = 0, hidden: int = 192, layers: int = 4) -> Path:
    """Write config, weights and tokenizer into ``directory`` and return it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    rng = random.Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator((sentence(rng, 40) for _ in range(2000)), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    )
    fast.chat_template = TEMPLATE
    directory.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(directory))

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=hidden,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(str(directory), safe_serialization=True)
    (directory / "seed.json").write_text(json.dumps({"seed": seed}))
    return directory


if __name__ == "__main__":
    import sys

    print(write_tiny_model(Path(sys.argv[1])))
