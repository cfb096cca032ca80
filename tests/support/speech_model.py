"""A model that hears: Whisper of random weights, which writes other texts about other sounds."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

RATE = 16_000
"""Samples a second, as the model takes them."""


def write_speech_model(folder: Path) -> Path:
    """Write config, weights, tokenizer and feature extractor into ``folder`` and return it."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(folder)
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=80,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    torch.manual_seed(1)
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() >= 2 and "embed_positions" not in name:
                weights.normal_(0, 0.3)
        # Letters are likelier than times, and bytes that are no letters by themselves are not to come at all.
        model.proj_out.weight[end:] *= 0.8
        odd = [number for token, number in tokenizer.get_vocab().items() if len(token) == 1 and token > "~"]
        model.proj_out.weight[odd] *= 0.1
    model.generation_config.suppress_tokens = None
    model.generation_config.begin_suppress_tokens = None
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    return folder


def _tokenizer(folder: Path) -> Any:
    """Bytes, the special tokens of Whisper, and its times."""
    from tokenizers import pre_tokenizers
    from transformers import WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[])
    tasks = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
    special = [f"<|{name}|>" for name in ("startoftranscript", *LANGUAGES, *tasks)]
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(1501)])
    tokenizer.save_pretrained(folder)
    return tokenizer


def samples(seed: int, seconds: float = 1.0, rate: int = RATE) -> Any:
    """A sound: three tones that come and go, and noise; float32, one channel."""
    import numpy as np

    drawn = np.random.default_rng(seed)
    times = np.arange(int(seconds * rate)) / rate
    found = 0.02 * drawn.standard_normal(len(times))
    for _ in range(3):
        tone, beat = drawn.uniform(100, 3000), drawn.uniform(0.3, 5)
        loud = drawn.uniform(0.05, 0.3) * np.sin(2 * np.pi * beat * times)
        found += loud * np.sin(2 * np.pi * tone * times)
    return found.astype(np.float32)


def sound(
    seed: int, *, seconds: float = 1.0, form: str = "WAV", rate: int = RATE, channels: int = 1
) -> bytes:
    """A sound file, in one of soundfile's formats."""
    import numpy as np
    import soundfile

    heard = [samples(seed + 1000 * channel, seconds, rate) for channel in range(channels)]
    file = io.BytesIO()
    soundfile.write(file, np.stack(heard, 1), rate, format=form)
    return file.getvalue()


def container(form: str, codec: str, seed: int = 1) -> bytes:
    """A sound file in one of FFmpeg's formats."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as written:
        stream: Any = written.add_stream(codec, rate=48_000, layout="mono")
        heard = samples(seed, 1.0, 48_000)
        frame = av.AudioFrame.from_ndarray(heard[None], format="fltp", layout="mono")
        frame.sample_rate = 48_000
        for resampled in av.AudioResampler(stream.format, "mono", 48_000, frame_size=960).resample(frame):
            written.mux(stream.encode(resampled))
        written.mux(stream.encode(None))
    return file.getvalue()


def as_url(content: bytes, kind: str = "wav") -> str:
    """A sound file as a data URL."""
    return f"data:audio/{kind};base64,{base64.b64encode(content).decode()}"


def hearing(content: bytes | str, **fields: Any) -> dict[str, Any]:
    """The body of a row about a sound; a text is its URL."""
    url = as_url(content) if isinstance(content, bytes) else content
    return {"file_url": url, "max_completion_tokens": 12} | fields
