"""The name of a bundle: it changes with all that compiled code depends on."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import runpy
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from dray.weights.bundle.environment import bundle_folder

_FORMAT = 1  # goes into the key: after a change of the format no older bundle is found


def bundle_key(
    *, model_key: str, versions: Mapping[str, str], hardware: str, configuration: Mapping[str, Any]
) -> str:
    """The name of the bundle for this model, software, hardware and configuration (64 hexadecimal digits).

    ``configuration`` is what the engine gets, with the model's path. The folder of ``bundle_folder`` counts
    too, because files in a bundle name it.
    """
    parts = {
        "format": _FORMAT,
        "folder": str(bundle_folder()),
        "model": model_key,
        "versions": dict(versions),
        "hardware": hardware,
        "configuration": dict(configuration),
    }
    # Paths and enums as text. A value without stable text gives a key that no replica finds: a cold start.
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def versions_and_hardware() -> tuple[dict[str, str], str]:
    """What compiled code depends on, beside model and configuration.

    Neither vLLM nor torch is imported for it: the key decides on variables that must be set before that.
    """
    torch = _declared("torch", "version.py")
    accelerator = torch.get("cuda") or torch.get("hip")
    versions = {
        "vllm": str(_declared("vllm", "_version.py").get("__version__", "")),
        "torch": str(torch.get("__version__", "")),
        "cuda": str(accelerator or ""),
        "triton": _installed("triton"),
        "flashinfer": _installed("flashinfer-python"),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }
    return versions, _gpu() if accelerator else _cpu()


def _declared(package: str, file: str) -> dict[str, Any]:
    """The names that a package's version file defines; none where it is not installed."""
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).with_name(file) if spec is not None and spec.origin else None
    return runpy.run_path(str(path)) if path is not None and path.is_file() else {}


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _gpu() -> str:
    """Name and compute capability of the first visible GPU; "unknown" if no tool reports them.

    CUDA is left alone in this process: once it is initialised, vLLM cannot fork its workers.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    tool = ["nvidia-smi", f"--id={first}", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    # Second, and in seconds: a slice of a GPU, ROCm, a container without the tool.
    return _said(tool) or _said([sys.executable, "-c", _ASK_TORCH]) or "unknown"


_ASK_TORCH = """
import torch
found = torch.cuda.get_device_properties(0)
print(f"{found.name}, {getattr(found, 'gcnArchName', f'{found.major}.{found.minor}')}")
"""


def _said(command: list[str]) -> str:
    """What a command prints; nothing where it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip()


def _cpu() -> str:
    """Model and instruction flags of the first processor: Inductor lets the compiler use all that it has."""
    names = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
    names |= {"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"}
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    said = {name: " ".join(sorted(value.split())) for name, value in fields.items() if name in names}
    return f"{platform.machine()} {json.dumps(said, sort_keys=True)}"
