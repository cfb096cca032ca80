"""A model's configuration and tokenizer alone: all of it but the weights, for code that computes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dray.errors import ConfigError
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.temporary import TemporaryFolder
from dray.weights.source.checkpoint import NATIVE, refuse_native
from dray.weights.source.hub import is_hub
from dray.weights.source.listing import content_of, read_manifest
from dray.weights.source.modules import names_in
from dray.weights.source.names import is_tokenizer

_MOST_BYTES = 256 << 20  # of one file; the largest tokenizers have 40 MB


def in_torchaos_pieces(folder: Path) -> bool:
    """Whether torchao stored a model's weights: tensors in pieces, which its own code puts together."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        parts = (config, config.get("text_config") or {})
        return any((one.get("quantization_config") or {}).get("quant_method") == "torchao" for one in parts)
    except (OSError, ValueError, AttributeError):  # no sound config: the engine says so
        return False


def has_tokenizer(folder: Path) -> bool:
    """Whether a model's folder holds a file of any kind of tokenizer."""
    return any(is_tokenizer(path.name) for path in folder.iterdir())


@contextmanager
def configuration_of(model: str, options: ObjectStoreOptions | None = None) -> Iterator[Path]:
    """A folder with the model's small files: its own, or a temporary one for what is read from elsewhere.

    Raises:
        ConfigError: there is no such model, or a file cannot be read.
    """
    if not (is_object(model) or is_hub(model)):
        folder = Path(model)
        if not (folder / "config.json").is_file():
            if folder.is_dir():
                refuse_native(model, names_in(folder))
            what = "there is no config.json in it" if folder.is_dir() else "no such directory"
            hint = "" if folder.is_dir() else "; for a model on the hub write hf://ORG/NAME"
            raise ConfigError(f"model {model}: {what}{hint}")
        yield folder
        return
    manifest = read_manifest(model, options, believe=False)
    with TemporaryFolder("dray-configuration-") as folder:
        name = manifest.uri.rstrip("/").rpartition("/")[2].partition("@")[0]
        own = folder / (name or "model")  # plans call the model by its folder
        own.mkdir()
        for file in manifest.files:
            if not file.is_weights and file.size <= _MOST_BYTES:
                (own / file.name).parent.mkdir(parents=True, exist_ok=True)
                (own / file.name).write_bytes(content_of(manifest.uri, file, options))
        if manifest.leaves_mistrals:  # by its name alone vLLM, and a plan, know which tokenizer reads prompts
            (own / NATIVE).touch()
        yield own
