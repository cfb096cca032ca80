"""Import vLLM once for as long as the process lives. Imports nothing of it by itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module

from dray.engine.start_errors import in_one_line
from dray.errors import ConfigError
from dray.imports import lasting_imports


def import_vllm(modules: Iterable[str], *, eager_on_cpu: bool) -> bool:
    """Import vLLM and these modules, and say whether it runs on CPU.

    ``eager_on_cpu``: nothing is compiled at run time if it does.

    Raises:
        ConfigError: vLLM is not installed, or its installation does not work here.
    """
    try:
        with lasting_imports():
            import_module("vllm")
            from vllm.platforms import current_platform

            cpu = bool(current_platform.is_cpu())
            if cpu and eager_on_cpu:
                # Samplers compile C++ on first use all the same: 18 s on 2 busy cores, or no g++.
                os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
            for module in modules:
                import_module(module)
    except ImportError as error:
        raise ConfigError(_told(error)) from error
    return cpu


def _told(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "vllm":
        return "vLLM is not installed: install dray with its extra gpu or cpu (README, Install)"
    said = in_one_line(str(error).partition("\n")[0])
    return (
        f"vLLM is installed and cannot be imported ({said or type(error).__name__}): its installation is "
        "incomplete, or made for another machine; install dray with its extra gpu or cpu anew (README, "
        "Install)"
    )
