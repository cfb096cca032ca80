"""The parts of an embedding model that lie in folders of their own: pooling, and layers behind it.

``modules.json`` (Sentence Transformers) names the folders: ``1_Pooling`` holds a config, ``2_Dense`` weights
too. An engine without them pools in another way, and says nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.errors import WeightsError
from dray.weights.source.checkpoint import INDEX, SINGLE, is_variant, refuse_pickles

MODULES = "modules.json"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_PART = re.compile(r"\w[\w.-]*")
_MOST = 64  # modules, each of which is listed
_NEEDED = {"Pooling": (CONFIG,), "Dense": (CONFIG, WEIGHTS)}  # the kinds that engines read


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module in a folder of its own; ``kind`` is the last part of its type, such as ``Pooling``."""

    path: str
    kind: str

    def wanted(self, model: str, names: Collection[str]) -> list[str]:
        """Which files of its folder an engine takes; ``names`` are those in it.

        Raises:
            WeightsError: one is missing.
            ConfigError: its weights are pickles.
        """
        for needed in _NEEDED.get(self.kind, ()):
            if needed in names:
                continue
            if needed == WEIGHTS:
                refuse_pickles(f"{model}/{self.path}", names)
            raise WeightsError(f"{model}/{self.path}/{needed}: missing, though {MODULES} names its folder")
        return [f"{self.path}/{name}" for name in sorted(names) if name == CONFIG or _is_weights(name)]


def module_files(model: str, text: bytes, below: Callable[[str], Collection[str]]) -> list[str]:
    """The files that ``modules.json`` wants beside those of the top folder, named from there.

    ``below`` gives the names of the files in a folder; none where there is no such folder.

    Raises:
        WeightsError: it is no such file, names what is outside the model's folder, or a file is missing.
        ConfigError: weights are pickles.
    """
    return [name for module in _modules(model, text) for name in module.wanted(model, below(module.path))]


def modules_of(folder: Path) -> list[str]:
    """The same files of a model in a local folder; none where it has no ``modules.json``."""
    file = folder / MODULES
    if not file.is_file():
        return []
    return module_files(str(folder), file.read_bytes(), lambda below: names_in(folder / below))


def weight_files(folder: Path) -> list[str]:
    """The safetensors files of a model that an engine may read, those of its modules too, named from there.

    Variants beside ``model.safetensors`` are never read. ``consolidated*`` is: by load format ``mistral``.
    """
    names = {file.name for file in folder.glob("*.safetensors")}
    if SINGLE in names and not (folder / INDEX).is_file():
        names = {name for name in names if not is_variant(name)}
    return sorted({*names, *filter(_is_weights, modules_of(folder))})


def names_in(folder: Path) -> set[str]:
    """The names of what is in a local folder; none where there is no such folder."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") and not name.startswith(".")


def _modules(model: str, text: bytes) -> Iterator[Module]:
    try:
        found: Any = json.loads(text)
        entries = found if isinstance(found, list) else found["modules"]
        pairs = {(str(entry.get("path") or ""), str(entry["type"])) for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WeightsError(f"{model}/{MODULES}: no list of modules with type and path") from None
    if len(pairs) > _MOST:
        raise WeightsError(f"{model}/{MODULES}: {len(pairs)} modules; dray reads {_MOST} at most")
    for path, kind in sorted(pairs):
        if not path:
            continue  # the top folder
        if not all(_PART.fullmatch(part) for part in path.split("/")):
            raise WeightsError(f"{model}/{MODULES}: {path!r} is not a folder of this model")
        yield Module(path=path, kind=kind.rpartition(".")[2])
