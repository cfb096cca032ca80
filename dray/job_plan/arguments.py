"""What engine arguments leave of a plan's choices: the ones that a user names are taken as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dray.engine.ranks import refuse_uneven
from dray.errors import ConfigError
from dray.planner.cost import PlanLimits
from dray.planner.models import FORMATS, KV_BYTES, ModelFacts, kv_format

_SPLIT = {
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "nnodes": "nodes",
}
_SIZES = ("max_num_seqs", "max_num_batched_tokens")


def limits_of(limits: PlanLimits, arguments: Mapping[str, Any]) -> PlanLimits:
    """The limits, with what the arguments say of the split, the batch and the cache.

    Raises:
        ConfigError: an argument cannot be, or those of the split do not go together; names it.
    """
    named: dict[str, Any] = {_SPLIT[name]: whole(arguments, name) for name in _SPLIT}
    if named["tensor_parallel"] is not None and named["pipeline_parallel"] is not None:
        refuse_uneven(arguments)
    named["max_model_len"] = whole(arguments, "max_model_len")
    named |= {name: (size,) for name in _SIZES if (size := whole(arguments, name)) is not None}
    share = arguments.get("gpu_memory_utilization")
    if share is not None:
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ConfigError(f"engine argument gpu_memory_utilization: {str(share)[:40]!r} is not a number")
        named["gpu_memory_utilization"] = float(share)
    kv = str(arguments.get("kv_cache_dtype") or "auto")
    if kv != "auto":
        named["kv"] = (_known(kv_format(kv) or kv, KV_BYTES, "kv_cache_dtype"),)
    return replace(limits, **named)


def limits_for(limits: PlanLimits, arguments: Mapping[str, Any], model: ModelFacts) -> PlanLimits:
    """The limits, with what the model and the arguments say together.

    Raises:
        ConfigError: a plan does not know the format of the weights that the arguments name.
    """
    return _with_weights(_with_tokens(limits, arguments, model), arguments, model)


def _with_tokens(limits: PlanLimits, arguments: Mapping[str, Any], model: ModelFacts) -> PlanLimits:
    """Limits with steps that hold what the model reads whole, where the user does not name their tokens."""
    if arguments.get("max_num_batched_tokens") is not None:
        return limits
    enough = dict.fromkeys(max(one, model.least_tokens) for one in limits.max_num_batched_tokens)
    return replace(limits, max_num_batched_tokens=tuple(enough))


def _with_weights(limits: PlanLimits, arguments: Mapping[str, Any], model: ModelFacts) -> PlanLimits:
    """Limits with the format that ``quantization`` makes of the weights as the engine loads them."""
    method = arguments.get("quantization")
    if method is None or limits.weights or model.quantized:  # a quantized checkpoint stays as it is
        return limits
    return replace(limits, weights=(_known(str(method), FORMATS, "quantization"),))


def whole(arguments: Mapping[str, Any], name: str) -> int | None:
    """A whole number above zero; None where the argument is left out.

    Raises:
        ConfigError: it is no such number.
    """
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"engine argument {name}: {str(value)[:40]!r} is not a whole number above zero")
    return value


def _known(value: str, known: Mapping[str, object], name: str) -> str:
    if value not in known:
        raise ConfigError(f"engine argument {name}: a plan knows {', '.join(known)}, and not {value[:40]!r}")
    return value
