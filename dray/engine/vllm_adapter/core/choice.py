"""Where an engine's core runs: in the replica's process, or in a process of its own. Imports no engine.

In a process of its own the device's next step waits for none of the front's work. Where the device is the
CPU, the two would share it, and one process starts sooner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from dray.errors import ConfigError
from dray.machine import vllm_build

ARGUMENT = "engine_core"

_CHOICES = ("apart", "inside")
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA's, AMD's, and either under WSL
# What vLLM arranges as it starts a core's process, where dray's has started before.
_ONLY_INSIDE: dict[str, Callable[[Any], bool]] = {
    "numa_bind": bool,
    "enable_elastic_ep": bool,
    "mm_tensor_ipc": lambda value: value == "torch_shm",
    "distributed_executor_backend": lambda value: value == "external_launcher",
}


def core_wanted(arguments: Mapping[str, Any]) -> Literal["apart", "inside"] | None:
    """Where the user wants the core to be; None where the machine is to decide.

    Raises:
        ConfigError: the engine argument is unknown, or another one does not go with it.
    """
    wanted = arguments.get(ARGUMENT)
    if wanted is None:
        return None
    if wanted not in _CHOICES:
        raise ConfigError(
            f"engine argument {ARGUMENT}: {str(wanted)[:40]!r} is none of {', '.join(_CHOICES)}"
        )
    if wanted == "apart" and (names := _only_inside(arguments)):
        raise ConfigError(
            f"engine argument {ARGUMENT}=apart does not go with {', '.join(names)}; leave one of them out"
        )
    return "apart" if wanted == "apart" else "inside"


def runs_apart(arguments: Mapping[str, Any]) -> bool:
    """Whether the core runs in a process of its own, as far as can be said before vLLM is imported.

    Raises:
        ConfigError: as :func:`core_wanted`.
    """
    wanted = core_wanted(arguments)
    if wanted is not None:
        return wanted == "apart"
    return len(os.sched_getaffinity(0)) > 1 and _has_accelerator() and not _only_inside(arguments)


def _only_inside(arguments: Mapping[str, Any]) -> list[str]:
    return [name for name, needs in _ONLY_INSIDE.items() if name in arguments and needs(arguments[name])]


def _has_accelerator() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or vllm_build() == "cpu":
        return False
    return any(Path(device).exists() for device in _DEVICES)
