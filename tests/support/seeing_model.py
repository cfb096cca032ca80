"""A model that sees: Idefics 3 of random weights, which answers otherwise about other images.

Its modules need no torchvision, which has no build for CPU on the package index. Images become 4 tokens each,
or up to 5 times that where they are larger than 56 pixels a side.
"""

from __future__ import annotations

import base64
import io
import random
from pathlib import Path
from typing import Any

from tests.support.byte_tokenizer import byte_tokenizer

SIDE = 56
"""Pixels of a side that the model looks at in one piece."""

_MOST_TILES = 4
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = [
    *("<|pad|>", "<|end|>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *("<|system|>", "<|user|>", "<|assistant|>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
]
_TEXT = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
}  # fmt: skip
_VISION = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": SIDE, "patch_size": 14, "initializer_range": 0.2,
}  # fmt: skip


def write_seeing_model(folder: Path) -> Path:
    """Write config, weights, tokenizer and processor into ``folder`` and return it."""
    import torch
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
    )

    tokenizer = byte_tokenizer(_SPECIAL, _TEMPLATE)
    config = Idefics3Config(
        vision_config=_VISION,
        text_config=_TEXT | {"vocab_size": len(tokenizer)},
        image_token_id=_SPECIAL.index("<image>"),
        pad_token_id=0,
        scale_factor=2,
    )
    torch.manual_seed(0)
    Idefics3ForConditionalGeneration(config).float().save_pretrained(folder)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": SIDE * _MOST_TILES // 2}, max_image_size={"longest_edge": SIDE}
    )
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=_TEMPLATE)
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def picture(seed: int, *, form: str = "PNG", size: tuple[int, int] | None = None) -> bytes:
    """An image file: coloured rectangles, of a size from ``SIDE`` / 2 to ``SIDE`` x 3 unless given."""
    from PIL import Image, ImageDraw

    rng = random.Random(seed)
    size = size or (rng.randint(SIDE // 2, SIDE * 3), rng.randint(SIDE // 2, SIDE * 3))
    image = Image.new("RGB", size, _colour(rng))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        left, right = sorted(rng.randrange(size[0]) for _ in range(2))
        top, bottom = sorted(rng.randrange(size[1]) for _ in range(2))
        draw.rectangle((left, top, right, bottom), fill=_colour(rng))
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def blank(width: int, height: int) -> bytes:
    """A PNG file of many pixels and few bytes."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def photograph(seed: int, size: tuple[int, int] = (1024, 768)) -> bytes:
    """A JPEG file of about the bytes and the work of a real photograph of that size."""
    import numpy as np
    from PIL import Image

    coarse = np.random.default_rng(seed).integers(0, 256, (size[1] // 16, size[0] // 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def as_url(content: bytes, kind: str = "png") -> str:
    """An image file as the URL that clients of OpenAI write."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def asking(*parts: str | bytes, **fields: Any) -> dict[str, Any]:
    """The body of a chat about images: texts are parts of text, or URLs where they begin with ``url:``."""
    content = [_part(part) for part in parts]
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8} | fields


def _part(part: str | bytes) -> dict[str, Any]:
    if isinstance(part, bytes):
        return {"type": "image_url", "image_url": {"url": as_url(part)}}
    if part.startswith("url:"):
        return {"type": "image_url", "image_url": {"url": part.removeprefix("url:")}}
    return {"type": "text", "text": part}


def _colour(rng: random.Random) -> tuple[int, int, int]:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)
