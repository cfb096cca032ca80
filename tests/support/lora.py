"""Small LoRA adapters as PEFT writes them, and the model that each of them stands for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")

Tensors = dict[str, NDArray[Any]]


def write_adapter(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    modules: tuple[str, ...] = MODULES,
    head: str | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write an adapter for these modules of each layer of a model's folder; ``config`` has the last word.

    With ``head`` it holds that module of a classifier whole.
    """
    numbers = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, weights in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(modules):
            outputs, inputs = weights.shape
            tensors[f"{PREFIX}{module}.lora_A.weight"] = _normal(numbers, rank, inputs)
            tensors[f"{PREFIX}{module}.lora_B.weight"] = _normal(numbers, outputs, rank)
        elif head is not None and name.startswith(f"{head}."):
            tensors[f"{PREFIX}{name}"] = _normal(numbers, *weights.shape)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    written = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if head else "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "bias": "none",
        "use_dora": False,
        "modules_to_save": ["classifier", "score"] if head else None,
    }
    (folder / CONFIG).write_text(json.dumps(written | (config or {})))
    return folder


def _normal(numbers: np.random.Generator, *shape: int) -> NDArray[Any]:
    return (0.15 * numbers.standard_normal(shape)).astype(np.float32)


def write_merged(folder: Path, model: Path, adapter: Path) -> Path:
    """Write the model with the adapter in its weights: W + (alpha / r) B A, and its whole modules."""
    shutil.copytree(model, folder)
    config = json.loads((adapter / CONFIG).read_text())
    changes, weights = load_file(adapter / WEIGHTS), load_file(model / "model.safetensors")
    for name in [name for name in changes if name.endswith(".lora_A.weight")]:
        module = name.removesuffix(".lora_A.weight")
        change = changes[f"{module}.lora_B.weight"] @ changes[name]
        weights[f"{module.removeprefix(PREFIX)}.weight"] += config["lora_alpha"] / config["r"] * change
    whole = {name: value for name, value in changes.items() if ".lora_" not in name}
    weights |= {name.removeprefix(PREFIX): value for name, value in whole.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
