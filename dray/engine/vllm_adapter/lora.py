"""LoRA adapters in vLLM: the arguments that they need, and loading them before the first row."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from typing import Any, get_args

from dray.engine.adapter_folder import Adapter
from dray.engine.adapters import ARGUMENT, rank_for
from dray.engine.protocol import EngineSpec
from dray.engine.start_errors import in_one_line
from dray.errors import ConfigError

logger = logging.getLogger(__name__)

_AT_ONCE = 16  # adapters in one batch, by default: each has its place in the device's memory


def lora_arguments(spec: EngineSpec, adapters: Sequence[Adapter], *, cpu: bool) -> dict[str, Any]:
    """The engine arguments that the adapters need; empty without any.

    Raises:
        ConfigError: the user's arguments do not go with them.
    """
    if not adapters:
        return {}
    from vllm.config.lora import MaxLoRARanks

    return {
        "enable_lora": True,
        "max_lora_rank": rank_for(adapters, spec.arguments, get_args(MaxLoRARanks)),
        "max_loras": _places(adapters, spec.arguments, cpu=cpu),
        # All stay in memory: none is read anew between two rows, when its folder may have changed.
        "max_cpu_loras": max(len(adapters) + 1, int(spec.arguments.get("max_loras") or 1)),
    }


def _places(adapters: Sequence[Adapter], arguments: Mapping[str, Any], *, cpu: bool) -> int:
    """Adapters in one batch. On CPU one place more than there are adapters, which stays empty.

    vLLM's code for CPUs (0.32; its pull request 48421) gives a row without an adapter the one in the last
    place, where rows with adapters are in the same batch. From an empty place it gets nothing.
    """
    needed = len(adapters) + 1
    if not cpu:
        return min(len(adapters), _AT_ONCE)
    given = arguments.get("max_loras")
    if isinstance(given, int) and given < needed:
        raise ConfigError(
            f"engine argument max_loras: on a CPU vLLM needs {needed}, one more than there are adapters: "
            "else rows without an adapter get one; leave it out, and dray chooses it"
        )
    return needed


def refuse_model_without_lora(spec: EngineSpec, config: Any) -> None:
    """Refuse adapters of a model for which vLLM has none, before its weights are loaded.

    Raises:
        ConfigError: names the model's class.
    """
    if not spec.arguments.get(ARGUMENT):
        return
    from vllm.model_executor.model_loader.utils import get_model_cls
    from vllm.model_executor.models.interfaces import supports_lora

    found = get_model_cls(config.model_config)
    if not supports_lora(found):
        raise ConfigError(
            f"engine argument {ARGUMENT}: vLLM offers no LoRA adapters for models of the class "
            f"{found.__name__}; leave it out"
        )


def load_adapters(engine: Any, adapters: Sequence[Adapter]) -> dict[str, Any]:
    """Load all adapters into the engine; what names each of them to vLLM, by its name.

    vLLM would load one at its first row, and a fault in it would end the engine for all rows.

    Raises:
        ConfigError: vLLM cannot load one; names it, and says why.
        Exception: the engine's own end, or a lack of memory: no adapter is to blame, and another start helps.
    """
    from vllm.lora.request import LoRARequest

    from dray.engine.vllm_adapter.errors import is_the_engines

    found = {}
    for number, adapter in enumerate(adapters, 1):
        request = LoRARequest(adapter.name, number, str(adapter.folder))
        try:
            engine.add_lora(request)
        except Exception as error:  # vLLM raises whatever its parts do; apart, it comes as a plain Exception
            if is_the_engines(error) or "out of memory" in str(error):
                raise
            raise adapter.says(f"vLLM cannot load it: {in_one_line(str(error))}") from error
        found[adapter.name] = request
    if found:
        logger.info("LoRA adapters: %s", ", ".join(map(repr, found)))
    return found


def adapter_of(body: Mapping[str, Any], default: str, adapters: Container[str]) -> str | None:
    """The adapter that a row asks for: by its own model, or by the job's; None for the model itself."""
    name = body.get("model") or default
    return name if isinstance(name, str) and name in adapters else None
