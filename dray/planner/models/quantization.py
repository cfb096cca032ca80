"""Which parts of a checkpoint are quantized, and how: what ``quantization_config`` says.

The forms are those that vLLM 0.32 loads: fp8, compressed-tensors, modelopt, AWQ, GPTQ, MXFP4; with
vLLM's plugin for it, bitsandbytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from dray.planner.models.fields import Fields
from dray.planner.models.formats import FORMATS, Format, grouped

_IGNORING = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
)
_GROUPED = ("awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round")
"""Methods whose weights have a scale for each group of so many inputs; vLLM splits none of dense layers'."""
_REFINED = ("fp8", *_GROUPED)
"""Methods of which vLLM makes experts' blocks smaller where a rank's share has parts of them
(``refine_fp8_moe_block_shape``, ``MoeWNA16Method``), down to 32. Of compressed-tensors it does not."""
_SMALLEST = 32
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8",
    "NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """Linear layers are in ``format``, but for the modules that a pattern of ``ignored`` names.

    ``kv`` is the format of the KV cache that the checkpoint asks for, None where it asks for none. ``block``:
    each rank's share of an MLP must be a multiple of it, for the scales. ``refined``: vLLM makes smaller ones
    of experts' blocks.
    """

    format: Format
    ignored: tuple[str, ...] = ()
    head: bool = False
    kv: str | None = None
    block: int = 1
    refined: bool = False

    def expert_block(self, hidden: int) -> int:
        """What each rank's share of an expert must be a multiple of; the expert reads ``hidden`` numbers."""
        smaller = self.refined and self.block % _SMALLEST == 0 and hidden % _SMALLEST == 0
        return _SMALLEST if smaller else self.block

    def share(self, modules: list[str]) -> float:
        """The share of these modules that is quantized."""
        kept = sum(any(_names(pattern, module) for pattern in self.ignored) for module in modules)
        return 1.0 - kept / len(modules) if modules else 1.0


def _names(pattern: str, module: str) -> bool:
    """``re:`` expressions, wildcards, a module above this one, or the last part of its name."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")
    return module == pattern or module.startswith(f"{pattern}.") or module.endswith(f".{pattern}")


def quantization_of(config: Fields) -> Quantization | None:
    """What the config says of quantization; None where weights are as they were trained.

    Raises:
        ConfigError: the method is unknown, or lacks a field; names file and field.
    """
    found = config.inner("quantization_config") or config.inner("compression_config")
    if found is None:
        return None
    ignored = tuple(name for key in _IGNORING for name in found.strings(key))
    return Quantization(
        _format(found),
        ignored,
        head=found.flag("lm_head"),
        kv=_kv_format(found),
        block=_block(found),
        refined=_is_refined(found),
    )


def _kv_format(found: Fields) -> str | None:
    """fp8 where vLLM's ``auto`` resolves to it: ModelOpt names an algorithm, compressed-tensors a scheme."""
    scheme = found.inner("kv_cache_scheme") if isinstance(found.get("kv_cache_scheme"), Mapping) else None
    if scheme is not None and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
        return "fp8"
    named = (found.get("kv_cache_scheme"), found.get("kv_cache_quant_algo"))
    return "fp8" if any(isinstance(one, str) and one.upper() == "FP8" for one in named) else None


def _block(found: Fields) -> int:
    """The larger side of a block with one scale, or the size of a group; 1 where rows have scales."""
    size = found.get("weight_block_size") or _block_of_group(found)
    sides = [one for one in size if type(one) is int and one > 0] if isinstance(size, list) else []
    if sides:
        return max(sides)
    if type(size) is int:
        return max(1, size)
    if str(found.get("quant_method") or "").lower() in _GROUPED:
        return max(1, _group_size(found))
    return 1


def _is_refined(found: Fields) -> bool:
    """Whether vLLM makes experts' blocks smaller: by the method, and only where they are squares."""
    size = found.get("weight_block_size")
    square = not isinstance(size, list) or size == size[:1] * len(size)
    return square and str(found.get("quant_method") or "").lower() in _REFINED


def _block_of_group(found: Fields) -> Any:
    """The same in compressed-tensors' words, a list or one number; None where it has other scales."""
    group = _first_group(found)
    weights = group.inner("weights") if group is not None else None
    if weights is None:
        return None
    by_group = weights.get("strategy") in (None, "group")  # left out, the size of the group says it
    return weights.get("block_structure") or (weights.get("group_size") if by_group else None)


def _format(found: Fields) -> Format:
    method = str(found.get("quant_method") or found.get("quant_algo") or "").lower()
    if method in ("fp8", "fbgemm_fp8", "mxfp4"):
        return FORMATS["mxfp4" if method == "mxfp4" else "fp8"]
    if method in _GROUPED:
        return grouped(found.count("bits", "w_bit"), _group_size(found))
    if method == "bitsandbytes":
        return FORMATS["int4" if found.flag("load_in_4bit") else "int8"]
    if found.get("quant_algo") is not None:
        return _algorithm(found)
    if found.get("config_groups") is not None:
        return _compressed(found)
    raise found.error(
        f"the field 'quantization_config.quant_method' is {method!r}; known are fp8, compressed-tensors, "
        "modelopt, awq, gptq, bitsandbytes, mxfp4"
    )


def _group_size(found: Fields) -> int:
    size = found.get("group_size")
    size = found.get("q_group_size") if size is None else size
    return size if type(size) is int else 128


def _algorithm(found: Fields) -> Format:
    """``quant_algo`` of NVIDIA's ModelOpt."""
    name = str(found.get("quant_algo")).upper()
    if name in _ALGORITHMS:
        return FORMATS[_ALGORITHMS[name]]
    if "W4A16" in name or "INT4" in name:
        return FORMATS["int4"]
    raise found.error(
        f"the field 'quantization_config.quant_algo' is {name!r}; known are {', '.join(_ALGORITHMS)}"
    )


def _groups(found: Fields) -> list[Fields]:
    """The groups of compressed-tensors that say something of weights."""
    groups = found.inner("config_groups")
    named = [groups.inner(name) for name in groups.values] if groups is not None else []
    return [one for one in named if one is not None and one.inner("weights") is not None]


def _first_group(found: Fields) -> Fields | None:
    return next(iter(_groups(found)), None)


def _compressed(found: Fields) -> Format:
    formats = [_of_group(found, group) for group in _groups(found)]
    if not formats:
        raise found.error("the field 'quantization_config.config_groups' names no weights")
    names = sorted({one.name for one in formats})
    if len(names) > 1:
        raise found.error(
            "the field 'quantization_config.config_groups' has layers in several formats "
            f"({', '.join(names)}), which the cost model does not know; dray run needs no plan"
        )
    return max(formats, key=lambda one: one.bits)


def _of_group(found: Fields, group: Fields) -> Format:
    weights = group.inner("weights")
    assert weights is not None
    bits, kind = weights.count("num_bits"), str(weights.get("type") or "int")
    if bits == 8 and kind == "float":
        return FORMATS["fp8"]
    if bits == 4 and kind == "float":
        return FORMATS["nvfp4"]
    if bits == 8 and group.get("input_activations") is not None:
        return FORMATS["int8"]
    return grouped(bits, _group_size(weights))
