"""What a LoRA adapter's folder holds: a configuration that vLLM can follow, and sound safetensors.

vLLM refuses the same when it loads the adapter, half a minute later. It also takes pickles; dray does not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dray.errors import ConfigError
from dray.weights import Header, read_header

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"

_PICKLES = ("adapter_model.bin", "adapter_model.pt")
# What an adapter's configuration may ask for and vLLM does not compute: the answers would be others.
_NOT_COMPUTED = {
    "use_dora": "DoRA",
    "lora_bias": "a bias of the adapter",
    "alora_invocation_tokens": "Activated LoRA",
    "layer_replication": "layer_replication",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
    "modules_to_save": "whole modules beside the adapter (modules_to_save) other than a head for classes",
    "trainable_token_indices": "tokens of the adapter's own (trainable_token_indices)",
}
_HEADS = ("classifier", "score")  # PEFT saves them whole, and vLLM takes them so: what a model calls its head
# Beginnings that leave the model's own weights as they are. Others (PiSSA, OLoRA, ...) change these.
_PLAIN_BEGINNINGS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. ``rank`` is its highest; ``header`` is that of its weights."""

    name: str
    folder: Path
    rank: int
    header: Header

    def says(self, what: str) -> ConfigError:
        """The error that something is wrong with it."""
        return _wrong(self.name, self.folder, what)


def read_adapter(name: str, folder: Path) -> Adapter:
    """The adapter in a folder, once it is known to be one that vLLM can apply.

    Raises:
        ConfigError: it is not; says what is missing, damaged or not offered.
    """
    if not folder.is_dir():
        raise _wrong(name, folder, f"no such directory; name the folder that holds its {CONFIG}")
    config = _config(name, folder)
    rank = _rank(name, folder, config)
    _refuse_not_computed(name, folder, config)
    header = _header(name, folder)
    if not any(".lora_" in tensor.name for tensor in header.tensors):
        raise _wrong(name, folder, f"{WEIGHTS} holds no LoRA tensor, so it would change nothing")
    _refuse_other_ranks(name, folder, config, header, rank)
    return Adapter(name, folder, rank, header)


def _config(name: str, folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise _wrong(name, folder, f"no {CONFIG} in it; is this the folder that PEFT saved?") from None
    except (ValueError, RecursionError):
        raise _wrong(name, folder, f"{CONFIG} is not valid JSON; copy it again") from None
    except OSError as error:
        raise _wrong(name, folder, f"{CONFIG} cannot be read: {error.strerror}") from None
    if not isinstance(found, dict):
        raise _wrong(name, folder, f"{CONFIG} holds no JSON object; copy it again")
    kind = found.get("peft_type")
    if kind != "LORA":
        raise _wrong(name, folder, f"its peft_type is {str(kind)[:40]!r}, and dray offers LORA adapters only")
    return found


def _rank(name: str, folder: Path, config: dict[str, Any]) -> int:
    """The highest rank of its modules."""
    pattern = config.get("rank_pattern") or {}
    given = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [None])]
    ranks = [rank for rank in given if type(rank) is int and rank > 0]
    if ranks != given:
        raise _wrong(name, folder, f"the ranks in {CONFIG} (r, rank_pattern) are not whole numbers above 0")
    alpha = config.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise _wrong(name, folder, f"lora_alpha in {CONFIG} is not a number")
    if "target_modules" not in config:
        raise _wrong(name, folder, f"{CONFIG} names no target_modules")
    return max(ranks)


def _refuse_not_computed(name: str, folder: Path, config: dict[str, Any]) -> None:
    for field, what in _NOT_COMPUTED.items():
        given = config.get(field)
        if field == "modules_to_save" and isinstance(given, list):
            given = [module for module in given if module not in _HEADS]
        if given:
            raise _wrong(name, folder, f"it was trained with {what}, which vLLM does not offer")
    if config.get("bias", "none") != "none":
        raise _wrong(name, folder, f"it has biases (bias: {str(config['bias'])[:20]!r}); vLLM takes none")
    beginning = config.get("init_lora_weights")
    if isinstance(beginning, str) and beginning.lower() not in _PLAIN_BEGINNINGS:
        raise _wrong(
            name,
            folder,
            f"init_lora_weights {beginning[:40]!r} goes with changed weights of the model; save it with "
            "PEFT's path_initial_model_for_weight_conversion, which makes a plain adapter of it",
        )


def _header(name: str, folder: Path) -> Header:
    file = folder / WEIGHTS
    if file.is_file():
        try:
            return read_header(file)
        except OSError as error:
            raise _wrong(name, folder, f"{WEIGHTS} cannot be read: {error.strerror}") from None
    pickles = [one for one in _PICKLES if (folder / one).exists()]
    if pickles:
        raise _wrong(
            name,
            folder,
            f"its weights are a pickle file ({pickles[0]}), which can run code when loaded; "
            f"save it as {WEIGHTS}",
        )
    raise _wrong(name, folder, f"no {WEIGHTS} in it")


def _refuse_other_ranks(
    name: str, folder: Path, config: dict[str, Any], header: Header, highest: int
) -> None:
    """Weights of another rank than the configuration's: vLLM would scale them wrongly, and say nothing."""
    for tensor in header.tensors:
        if not tensor.name.endswith(".lora_A.weight") or ".experts" in tensor.name:
            continue
        rank = tensor.shape[0] if tensor.shape else 0
        if rank > highest or (not config.get("rank_pattern") and rank != highest):
            raise _wrong(
                name,
                folder,
                f"tensor {tensor.name!r} has rank {rank}, and {CONFIG} says {highest}; copy both again",
            )


def _wrong(name: str, folder: Path, what: str) -> ConfigError:
    return ConfigError(f"engine argument lora_modules: adapter {name[:100]!r} in {folder}: {what}")
