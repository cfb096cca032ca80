"""That every parameter came from the checkpoint, and every part of a fused one.

vLLM's own check (``DefaultModelLoader.track_weights_loading``) leaves out unquantised linear layers, and
takes a fused parameter for loaded when one of its parts was: a checkpoint without ``k_proj`` loads without a
word, with whatever was in memory. So rows of unquantised parameters, which vLLM makes uninitialised, are
marked before the load, and looked for after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dray.errors import WeightsError

if TYPE_CHECKING:
    import torch

_MARK = bytes(range(0xA0, 0xB0))  # 16 bytes at the start of a row; no trained weights look like this
_UNINITIALISED = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod", "UnquantizedFusedMoEMethod")


class Completeness:
    """Made before a model is loaded, asked after."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._marked = dict(_markable(model))
        for parameter in self._marked.values():
            _starts(parameter).copy_(_mark(parameter))

    def refuse_missing(self, loaded: set[str] | None, name: str) -> None:
        """Refuse a model of which something was not loaded; ``loaded`` is what it says itself.

        Raises:
            WeightsError: names the parameters.
        """
        unfilled = [
            parameter
            for parameter, values in self._marked.items()
            if bool((_starts(values) == _mark(values)).all(dim=-1).any())
        ]
        missing = sorted({*unfilled, *_untracked(self._model, loaded)})
        if missing:
            shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
            raise WeightsError(
                f"model {name}: its checkpoint lacks weights, or parts of them, for {shown}; "
                "is it complete, and of this architecture?"
            )


def _markable(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters that hold nothing yet, in rows of at least a mark's length."""
    for module_name, module in model.named_modules():
        method = type(getattr(module, "quant_method", None)).__name__
        if not method.endswith(_UNINITIALISED):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            data = parameter.data
            long_enough = data.dim() >= 2 and data.shape[-1] * data.element_size() >= len(_MARK)
            if long_enough and data.numel() and data.is_contiguous() and not data.is_meta:
                yield f"{module_name}.{name}", data


def _starts(data: torch.Tensor) -> torch.Tensor:
    """The first bytes of each row, as a view: rows x 16."""
    import torch

    rows = data.view(-1, data.shape[-1]).view(torch.uint8)
    return rows[:, : len(_MARK)]


def _mark(data: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.tensor(list(_MARK), dtype=torch.uint8, device=data.device)


def _untracked(model: Any, loaded: set[str] | None) -> list[str]:
    """What vLLM's check finds, with the exemptions that it makes for quantised models alone."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    if loaded is None:  # this model does not say what it loaded
        return []
    try:
        # It looks at its arguments alone.
        DefaultModelLoader.track_weights_loading(None, model, set(loaded), quantized=True)
    except ValueError as error:
        names = str(error).partition("{")[2].rpartition("}")[0]
        return [name.strip(" '\"") for name in names.split(",")]
    return []
