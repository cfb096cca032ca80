"""The model, as far as it can be judged without an engine."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from dray.errors import ConfigError
from dray.storage.objects import ObjectStoreOptions, is_object
from dray.weights import Manifest, check_checkpoint, check_remote, read_manifest
from dray.weights.source.checkpoint import INDEX, refuse_incomplete
from dray.weights.source.configuration import has_tokenizer
from dray.weights.source.header import HEADER_LIMIT
from dray.weights.source.hub import is_hub, refuse_dataset
from dray.weights.source.modules import modules_of, names_in, weight_files
from dray.weights.source.names import TEMPLATES, USUAL, named_templates

# In the order of earlier versions: a model that has none of the later files keeps its digest.
_FIRST = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "special_tokens_map.json", "tokenizer.model", INDEX,
)  # fmt: skip
_SMALL_FILES = (*_FIRST, *(name for name in USUAL if name not in _FIRST))
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Keys by which models say how many positions they have, and those that stretch them, which vLLM works out.
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "max_seq_length", "max_target_positions", "model_max_length", "seq_len",
)  # fmt: skip
_SCALING = ("rope_scaling", "rope_parameters")
_LONGER_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"  # never advised: answers past the model's length are noise


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
            f"{_hub_hint(path)}"
        )
    refuse_incomplete(model, [file.name for file in path.iterdir()], weights=not dummy_weights)
    try:
        json.loads((path / "config.json").read_bytes())
    except ValueError:
        raise ConfigError(f"model {model}: config.json is not valid JSON") from None
    if not dummy_weights:
        check_checkpoint(path)
    return path


def _hub_hint(path: Path) -> str:
    """What to write where the name is that of a model on the hub, such as ORG/NAME."""
    name = _as_named(path)
    return f"; for the hub write hf://{name}" if _HUB_NAME.fullmatch(name) else ""


def _as_named(path: Path) -> str:
    """The path as a user of this folder writes it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(path)


def refuse_typo(model: str) -> None:
    """Refuse a path that does not exist, for engines that read no model and take any name.

    Raises:
        ConfigError: the path of a folder that is not there, or a dataset.
    """
    refuse_dataset(model)
    if is_object(model) or is_hub(model) or Path(model).exists():
        return
    if len(Path(_as_named(Path(model))).parts) > 1:
        raise ConfigError(
            f"model {model}: no such directory; the simulated engine reads no model: "
            "name a folder that is there, or write `--model none`"
        )


def refuse_misfit(model: str, arguments: Mapping[str, Any]) -> None:
    """Refuse engine arguments that do not go with the model of a local folder.

    Raises:
        ConfigError: ``max_model_len`` is longer than the model goes, or there is no tokenizer, or its file
            is broken.
    """
    folder = Path(model)
    if not folder.is_dir():
        return
    _refuse_longer(json.loads((folder / "config.json").read_bytes()), arguments)
    named = arguments.get("tokenizer") or arguments.get("skip_tokenizer_init")
    if not named and not has_tokenizer(folder):
        raise ConfigError(
            f"model {model}: no tokenizer in it (tokenizer.json, tokenizer_config.json, ...); "
            "copy it there, or name its folder with --engine-arg tokenizer=FOLDER"
        )
    if not named:
        _refuse_broken_tokenizer(folder)


def _refuse_broken_tokenizer(folder: Path) -> None:
    """A look that takes no library: an engine says the same half a minute later, without the file's name."""
    for name, part in (("tokenizer.json", "model"), ("tokenizer_config.json", None)):
        file = folder / name
        if not file.is_file():
            continue
        try:
            found = orjson.loads(file.read_bytes())
        except ValueError:
            raise ConfigError(
                f"{file}: not valid JSON, so no tokenizer can be loaded; copy it again"
            ) from None
        if not isinstance(found, dict) or (part is not None and not isinstance(found.get(part), dict)):
            what = f"no object with {part!r}" if part else "no JSON object"
            raise ConfigError(f"{file}: {what} in it, so no tokenizer can be loaded; copy it again")


def context_of(model: str, arguments: Mapping[str, Any]) -> int | None:
    """The longest that prompt and answer may be, as far as it is written plainly; None where it is not."""
    wanted = arguments.get("max_model_len")
    if isinstance(wanted, int) and wanted > 0:
        return wanted
    file = Path(model) / "config.json"
    if wanted is not None or not file.is_file():
        return None
    own = _own_length(json.loads(file.read_bytes()), arguments)
    return None if own is None else int(own[0])


def family_of(model: str) -> str | None:
    """The ``model_type`` of a local folder's model; None where it is elsewhere, or says none."""
    file = Path(model) / "config.json"
    config = json.loads(file.read_bytes()) if file.is_file() else None
    found = config.get("model_type") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None


def _refuse_longer(config: Any, arguments: Mapping[str, Any]) -> None:
    wanted, own = arguments.get("max_model_len"), _own_length(config, arguments)
    if own is None or not isinstance(wanted, int) or os.environ.get(_LONGER_ALLOWED) or wanted <= own[0]:
        return
    raise ConfigError(
        f"max_model_len {wanted} is more than the model's own {own[0]} ({own[1]} in its "
        f"config.json); give at most {own[0]}, or leave it out: longer rows become error rows"
    )


def _own_length(config: Any, arguments: Mapping[str, Any]) -> tuple[int | float, str] | None:
    """The model's length and its name there, if it is written plainly; scaled positions are left to vLLM."""
    if not isinstance(config, dict) or "hf_overrides" in arguments:
        return None
    texts = [config, config.get("text_config")]
    parts = [part for part in texts if isinstance(part, dict)]
    if _is_stretched(parts):
        return None
    known = {
        part[name]: name for part in parts for name in _LENGTHS if isinstance(part.get(name), int | float)
    }
    return (max(known), known[max(known)]) if known else None


def _is_stretched(value: Any, *, within: bool = False) -> bool:
    """Whether a factor among the model's rotary positions makes it longer than its config says."""
    if isinstance(value, list):
        return any(_is_stretched(part, within=within) for part in value)
    if not isinstance(value, dict):
        return False
    if within and "factor" in value:
        return True
    return any(_is_stretched(part, within=within or name in _SCALING) for name, part in value.items())


def model_digest(model: str) -> str:
    """What makes the model this model: its small files whole, and names, sizes and headers of its weights.

    With those of the modules of an embedding model, which decide how it pools, and the named chat templates.

    Raises:
        WeightsError: ``modules.json`` is damaged, or a file that it names is missing.
        ConfigError: a module's weights are pickles.
    """
    path = Path(model)
    digest = hashlib.sha256()
    modules = [name for name in modules_of(path) if name.endswith(".json")]
    for name in (*_SMALL_FILES, *modules, *named_templates(names_in(path / TEMPLATES))):
        file = path / name
        if file.is_file():
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    for name in weight_files(path):
        file = path / name
        digest.update(f"{name}\0{file.stat().st_size}\0".encode() + _header(file))
    return digest.hexdigest()


def _header(file: Path) -> bytes:
    """The safetensors header (8 bytes of length, then JSON) and the first and last bytes of the data."""
    with file.open("rb") as stream:
        size = min(int.from_bytes(stream.read(8), "little"), HEADER_LIMIT)
        header = stream.read(size) + stream.read(65_536)
        stream.seek(max(8 + size, file.stat().st_size - 65_536))
        return hashlib.sha256(header + stream.read()).digest()
