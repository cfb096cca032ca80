"""Write a model's folder without weights: the shape of a Llama, and a tokenizer of 131,072 tokens.

With ``load_format=dummy`` an engine makes the weights up, so that a GPU computes what it would for the real
model. The tokenizer is Mistral's tekken, which comes with ``mistral_common``: text costs the host what it
costs in production.

``python -m tests.support.shaped_model FOLDER 1b|8b``
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TEKKEN = "tekken_240911.json"
_VOCABULARY = 131072
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_NAMED = ("<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Layers and widths of a Llama (`config.json` of Llama-3.2-1B and Llama-3.1-8B)."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Weights that a token is multiplied with, the output layer among them."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.hidden * _VOCABULARY


SHAPES = {
    "tiny": Shape(hidden=128, inner=256, layers=2, heads=4, kv_heads=2, head_size=32, tied=True),
    "1b": Shape(hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, head_size=64, tied=True),
    "8b": Shape(hidden=4096, inner=14336, layers=32, heads=32, kv_heads=8, head_size=128, tied=False),
}


def write_shaped_model(folder: Path, shape: Shape) -> Path:
    """Write ``config.json``, ``generation_config.json`` and the tokenizer into ``folder`` and return it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tekken(), bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = _TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    (folder / "config.json").write_text(json.dumps(_config(shape) | ids, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(ids))
    return folder


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": _VOCABULARY,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _tekken() -> Any:
    """Its tokens by rank, as many as leave room for the special ones."""
    import mistral_common
    from transformers.convert_slow_tokenizer import TikTokenConverter

    source = json.loads((Path(mistral_common.__file__).parent / "data" / _TEKKEN).read_text())
    special = [*_NAMED, *(f"<|special-{n}|>" for n in range(1000 - len(_NAMED)))]
    words = source["vocab"][: _VOCABULARY - len(special)]
    lines = [f"{base64.b64encode(_bytes(word)).decode()} {word['rank']}\n" for word in words]
    with tempfile.NamedTemporaryFile("w", suffix=".tiktoken") as file:
        file.writelines(lines)
        file.flush()
        return TikTokenConverter(
            vocab_file=file.name, pattern=source["config"]["pattern"], extra_special_tokens=special
        ).converted()


def _bytes(word: dict[str, Any]) -> bytes:
    return base64.b64decode(word["token_bytes"])


if __name__ == "__main__":
    write_shaped_model(Path(sys.argv[1]), SHAPES[sys.argv[2]])
