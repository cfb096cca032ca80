"""The model, as far as it can be judged without an engine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from dray.errors import ConfigError
from dray.requests.objects import ObjectStoreOptions, is_object
from dray.weights import Manifest, check_checkpoint, check_remote, read_manifest
from dray.weights.checkpoint import refuse_incomplete
from dray.weights.header import HEADER_LIMIT
from dray.weights.hub import is_hub

_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "tokenizer.model",
    "model.safetensors.index.json",
)


def checked_weights(
    model: str, objects: ObjectStoreOptions | None, *, dummy_weights: bool = False
) -> Manifest | None:
    """Judge a model in a directory, or in an object store; the state of the latter, None for the former.

    Raises:
        ConfigError: it is not what an engine needs; says what is missing or damaged.
    """
    if not (is_object(model) or is_hub(model)):
        check_model(model, dummy_weights=dummy_weights)
        return None
    manifest = read_manifest(model, objects)
    if dummy_weights:  # none are fetched
        return replace(manifest, files=tuple(file for file in manifest.files if not file.is_weights))
    check_remote(manifest, objects)
    return manifest


def check_model(model: str, *, dummy_weights: bool = False) -> Path:
    """The model's directory, once it is known to hold what an engine needs.

    Raises:
        ConfigError: no such directory, no config.json, or weights that are not sound safetensors files.
    """
    path = Path(model)
    if not path.is_dir():
        raise ConfigError(
            f"model {model}: no such directory; give one with config.json and *.safetensors, or its URI"
        )
    refuse_incomplete(model, [file.name for file in path.iterdir()], weights=not dummy_weights)
    try:
        json.loads((path / "config.json").read_bytes())
    except ValueError:
        raise ConfigError(f"model {model}: config.json is not valid JSON") from None
    if not dummy_weights:
        check_checkpoint(path)
    return path


def model_digest(model: str) -> str:
    """What makes the model this model: its small files whole, and names, sizes and headers of its weights."""
    path = Path(model)
    digest = hashlib.sha256()
    for name in _SMALL_FILES:
        file = path / name
        if file.is_file():
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    for file in sorted(path.glob("*.safetensors")):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode() + _header(file))
    return digest.hexdigest()


def _header(file: Path) -> bytes:
    """The safetensors header (8 bytes of length, then JSON) and the first and last bytes of the data."""
    with file.open("rb") as stream:
        size = min(int.from_bytes(stream.read(8), "little"), HEADER_LIMIT)
        header = stream.read(size) + stream.read(65_536)
        stream.seek(max(8 + size, file.stat().st_size - 65_536))
        return hashlib.sha256(header + stream.read()).digest()
