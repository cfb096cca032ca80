"""Small random models that judge texts: a cross-encoder, models with a head for classes, a reranker."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

from tests.support.tiny_model import WORDS, write_tiny_model

LABELS = ("billing", "delivery", "defect")


def write_cross_encoder(folder: Path, *, classes: int = 1) -> Path:
    """A BERT that reads a pair of texts, as rerankers on the hub do, with its own tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *sorted(set(WORDS)), ".", *(f"##{one}" for one in ascii_lowercase)]
    vocabulary += [one for one in ascii_lowercase if one not in WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=512,
        num_labels=classes,
    )
    return _written(BertForSequenceClassification, config, folder)


def write_classifier(folder: Path, *, labels: tuple[str, ...] = LABELS) -> Path:
    """The tiny Llama, with a head in place of its output layer; one label makes it a reward model."""
    from transformers import AutoConfig, LlamaForSequenceClassification

    write_tiny_model(folder)
    config = AutoConfig.from_pretrained(folder)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    return _written(LlamaForSequenceClassification, config, folder)


def write_generating_reranker(folder: Path) -> Path:
    """A Qwen 3 whose tokenizer has "yes" and "no", as Qwen3-Reranker is published."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    write_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return _written(Qwen3ForCausalLM, config, folder)


def _written(model_class: Any, config: Any, folder: Path) -> Path:
    """Weights wide enough for judgements that differ."""
    import torch

    torch.manual_seed(3)
    model = model_class(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.normal_(0, 0.15)
    model.save_pretrained(folder)
    return folder
