"""Whether an adapter was made for the model: vLLM says nothing of weights that it has no place for."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from dray.engine.adapter_folder import Adapter
from dray.errors import WeightsError
from dray.weights import TensorInfo, check_checkpoint

_PREFIX = "base_model.model."
_IN, _OUT = ".lora_A.weight", ".lora_B.weight"
_PLAIN = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})  # not packed: shapes are the model's


def refuse_misfits(adapters: Sequence[Adapter], model: Path) -> None:
    """Refuse adapters whose modules the model of a local folder does not have, or has in another size.

    Judged where the two name modules alike. Some models name them otherwise than their files do: those are
    left to vLLM.

    Raises:
        ConfigError: names the module.
    """
    if not adapters or not (model / "config.json").is_file():
        return
    try:
        held = {
            tensor.name: tensor for header in check_checkpoint(model).values() for tensor in header.tensors
        }
    except WeightsError:
        return  # said of the model itself; and with dummy weights it needs none
    modules = {name.rpartition(".")[0] for name in held}
    for adapter in adapters:
        _refuse_misfit(adapter, model, held, modules)


def _refuse_misfit(
    adapter: Adapter, model: Path, held: Mapping[str, TensorInfo], modules: Container[str]
) -> None:
    wanted = [(_module(tensor.name), tensor) for tensor in adapter.header.tensors if _is_compared(tensor)]
    if not any(module in modules for module, _ in wanted):
        return
    for module, tensor in wanted:
        if module not in modules:
            raise adapter.says(
                f"it changes {module!r}, which the model {model} does not have; "
                "was the adapter trained on another model?"
            )
        _refuse_size(adapter, tensor, held.get(f"{module}.weight"), module)


def _is_compared(tensor: TensorInfo) -> bool:
    """Experts are stored in many ways, and tied embeddings not at all: layers are compared."""
    name = tensor.name
    return name.endswith((_IN, _OUT)) and ".layers." in name and ".experts" not in name


def _module(name: str) -> str:
    return name.removeprefix(_PREFIX).removesuffix(_IN).removesuffix(_OUT)


def _refuse_size(adapter: Adapter, tensor: TensorInfo, of_model: TensorInfo | None, module: str) -> None:
    if of_model is None or of_model.dtype not in _PLAIN or len(of_model.shape) != 2 or len(tensor.shape) != 2:
        return
    is_input = tensor.name.endswith(_IN)
    has, needs = (tensor.shape[1], of_model.shape[1]) if is_input else (tensor.shape[0], of_model.shape[0])
    if has != needs:
        side = "inputs" if is_input else "outputs"
        raise adapter.says(
            f"it is made for {has:,} {side} of {module!r}, and the model has {needs:,}; "
            "was the adapter trained on another model?"
        )
