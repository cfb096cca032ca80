"""Chat models that hear, of random weights, which answer otherwise about other sounds.

Qwen2-Audio hears 30 seconds of each of some sounds, Audio Flamingo 3 ten minutes of one. A second of sound
becomes 25 tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.speech_model import as_url

_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] in ('audio', 'audio_url', 'input_audio') %}"
    "SOUND{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = [
    *("<|pad|>", "<|end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<sound>"),
    *("<|system|>", "<|user|>", "<|assistant|>"),
]
_TEXT = {
    "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
}  # fmt: skip
_HEARING = {
    "model_type": "qwen2_audio_encoder", "num_mel_bins": 128, "d_model": 64, "encoder_layers": 2,
    "encoder_attention_heads": 2, "encoder_ffn_dim": 128, "max_source_positions": 1500, "init_std": 0.2,
}  # fmt: skip


def write_listening_model(folder: Path) -> Path:
    """Write Qwen2-Audio's config, weights, tokenizer and processor into ``folder`` and return it."""
    import torch
    from transformers import (
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        WhisperFeatureExtractor,
    )

    template = _TEMPLATE.replace("SOUND", "<|audio_bos|><|AUDIO|><|audio_eos|>")
    tokenizer = byte_tokenizer(_SPECIAL, template)
    config = Qwen2AudioConfig(
        audio_config=_HEARING,
        text_config=_TEXT | {"vocab_size": len(tokenizer)},
        audio_token_index=_SPECIAL.index("<|AUDIO|>"),
        pad_token_id=0,
    )
    torch.manual_seed(0)
    _save(Qwen2AudioForConditionalGeneration(config), folder)
    features = WhisperFeatureExtractor(feature_size=128)
    Qwen2AudioProcessor(features, tokenizer, chat_template=template).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_patient_model(folder: Path) -> Path:
    """The same of Audio Flamingo 3."""
    import torch
    from transformers import (
        AudioFlamingo3Config,
        AudioFlamingo3ForConditionalGeneration,
        AudioFlamingo3Processor,
        WhisperFeatureExtractor,
    )

    template = _TEMPLATE.replace("SOUND", "<sound>")
    tokenizer = byte_tokenizer(_SPECIAL, template)
    hearing = {
        "model_type": "audioflamingo3_encoder", "num_mel_bins": 128, "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "max_source_positions": 1500,
    }  # fmt: skip
    config = AudioFlamingo3Config(
        audio_config=hearing,
        text_config=_TEXT | {"vocab_size": len(tokenizer)},
        audio_token_id=_SPECIAL.index("<sound>"),
    )
    torch.manual_seed(0)
    _save(AudioFlamingo3ForConditionalGeneration(config), folder)
    features = WhisperFeatureExtractor(feature_size=128)
    AudioFlamingo3Processor(features, tokenizer, chat_template=template).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _save(model: Any, folder: Path) -> None:
    """Weights that are wide enough for answers to differ."""
    import torch

    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() >= 2 and "embed_positions" not in name:
                weights.normal_(0, 0.2)
    model.float().save_pretrained(folder)
    _rename(folder / "model.safetensors")


def _rename(weights: Path) -> None:
    """Give the tensors the names that published models have: transformers 5 doubles a part of some."""
    from safetensors.torch import load_file, save_file

    doubled, single = "language_model.model.model.", "language_model.model."
    tensors = {name.replace(doubled, single): value for name, value in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})


def asking(*parts: str | bytes, **fields: Any) -> dict[str, Any]:
    """The body of a chat about sounds: texts are parts of text, or URLs where they begin with ``url:``."""
    content = [_part(part) for part in parts]
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8} | fields


def _part(part: str | bytes) -> dict[str, Any]:
    if isinstance(part, bytes):
        return {"type": "audio_url", "audio_url": {"url": as_url(part)}}
    if part.startswith("url:"):
        return {"type": "audio_url", "audio_url": {"url": part.removeprefix("url:")}}
    return {"type": "text", "text": part}
