"""A model that sees videos: Qwen2-VL of random weights, which answers otherwise about other videos.

Two frames become one token for each 28 x 28 pixels. transformers make pixels of frames with torchvision,
which has no build for CPU on the package index. Where it is missing, a few functions of torch stand in for
it, in processes of their own, as transformers look for it once.
"""

from __future__ import annotations

import base64
import io
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.support.byte_tokenizer import byte_tokenizer

ROOT = Path(__file__).parents[2]
SIDE = 56
"""Pixels of a side of a frame."""

_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = [
    *("<|pad|>", "<|end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|system|>", "<|user|>", "<|assistant|>"),
]
_TEXT = {
    "model_type": "qwen2_vl_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
}  # fmt: skip
_VISION = {
    "depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "initializer_range": 0.2,
}  # fmt: skip


def write_watching_model(folder: Path) -> Path:
    """Write config, weights, tokenizer and processors into ``folder`` and return it."""
    import json

    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    tokenizer = byte_tokenizer(_SPECIAL, _TEMPLATE)
    config = Qwen2VLConfig(
        vision_config=_VISION,
        text_config=_TEXT | {"vocab_size": len(tokenizer)},
        vision_start_token_id=_SPECIAL.index("<|vision_start|>"),
        vision_end_token_id=_SPECIAL.index("<|vision_end|>"),
        image_token_id=_SPECIAL.index("<|image_pad|>"),
        video_token_id=_SPECIAL.index("<|video_pad|>"),
    )
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.normal_(0, 0.2)
    model.float().save_pretrained(folder)
    pixels = {"size": {"shortest_edge": SIDE * SIDE, "longest_edge": SIDE * SIDE * 4}}
    images = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"}
    for name, said in (
        ("preprocessor_config", images),
        ("video_preprocessor_config", {"video_processor_type": "Qwen2VLVideoProcessor"}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(said | pixels))
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    return folder


_FUNCTIONS = """
import torch
from torchvision.transforms import InterpolationMode

def __getattr__(name):  # what other models import
    if name.startswith("__"):
        raise AttributeError(name)

def pil_to_tensor(image):
    import numpy
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)

def resize(image, size, interpolation=None, antialias=True):
    mode = InterpolationMode(interpolation or InterpolationMode.BILINEAR).value
    batch = image.reshape(-1, *image.shape[-3:])
    found = torch.nn.functional.interpolate(batch.float(), list(size), mode=mode, antialias=antialias)
    if not image.is_floating_point():
        found = found.round().clamp(0, 255).to(image.dtype)
    return found.reshape(*image.shape[:-2], *found.shape[-2:])

def normalize(image, mean, std, inplace=False):
    mean, std = (torch.as_tensor(one, dtype=image.dtype).reshape(-1, 1, 1) for one in (mean, std))
    return (image - mean) / std

def grayscale_to_rgb(image):
    return image if image.shape[-3] == 3 else image.expand(*image.shape[:-3], 3, *image.shape[-2:])
"""
_MODES = """
from enum import Enum

class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
"""


def write_torchvision(folder: Path) -> Path:
    """What stands in for torchvision, as a package in ``folder``; nothing where torchvision is installed."""
    files = {
        "__init__.py": "__version__ = '0.28.0'",
        "io/__init__.py": "ImageReadMode = decode_image = None",
        "transforms/__init__.py": _MODES,
        "transforms/functional.py": _FUNCTIONS,
        "transforms/v2/__init__.py": "",
        "transforms/v2/functional.py": "from torchvision.transforms.functional import *",
    }
    for name, text in files.items() if find_spec("torchvision") is None else ():
        path = folder / "torchvision" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def film(
    seed: int,
    *,
    frames: int = 20,
    form: str = "mp4",
    size: tuple[int, int] = (SIDE, SIDE),
    codec: str | None = None,
) -> bytes:
    """A file of moving rectangles, ten frames a second."""
    import av
    import numpy as np

    rng = random.Random(seed)
    codec = codec or {"webm": "libvpx", "avi": "mjpeg", "flv": "flv"}.get(form, "mpeg4")
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    file = io.BytesIO()
    with av.open(file, "w", format={"mkv": "matroska"}.get(form, form)) as made:
        stream: Any = made.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = (*size, pixels)
        ground, colour = ([rng.randrange(256) for _ in range(3)] for _ in range(2))
        x, y = rng.randrange(size[0] // 2), rng.randrange(size[1] // 2)
        for number in range(frames):
            picture = np.full((size[1], size[0], 3), ground, np.uint8)
            at = (x + number * 2) % (size[0] // 2)
            picture[y : y + size[1] // 2, at : at + size[0] // 2] = colour
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")):
                made.mux(packet)
        for packet in stream.encode(None):
            made.mux(packet)
    return file.getvalue()


def film_in_av1(folder: Path) -> bytes:
    """A short one, made in a process of its own.

    As root, SVT-AV1 gives the thread that calls it, and with it all later ones, real-time priority 99: vLLM's
    threads, which wait by spinning, then leave no other process a core.
    """
    path = folder / "av1.mp4"
    code = f"open({str(path)!r}, 'wb').write(film(1, codec='libsvtav1', size=(64, 64)))"
    program = f"from tests.support.watching_model import film; {code}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True)
    return path.read_bytes()


def as_url(content: bytes, kind: str = "mp4") -> str:
    """A video as the URL that clients write."""
    return f"data:video/{kind};base64,{base64.b64encode(content).decode()}"


def asking(*parts: str | bytes, **fields: Any) -> dict[str, Any]:
    """The body of a chat about videos: texts are parts of text, or URLs where they begin with ``url:``."""
    content = [_part(part) for part in parts]
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8} | fields


def _part(part: str | bytes) -> dict[str, Any]:
    if isinstance(part, bytes):
        return {"type": "video_url", "video_url": {"url": as_url(part)}}
    if part.startswith("url:"):
        return {"type": "video_url", "video_url": {"url": part.removeprefix("url:")}}
    return {"type": "text", "text": part}
