"""Checks that every parameter came from the checkpoint, and every part of a fused one.

vLLM's own check (``DefaultModelLoader.track_weights_loading``) leaves out unquantised linear layers, and
takes a fused parameter for loaded when one of its parts was: a checkpoint without ``k_proj`` loads without a
word, with whatever was in memory. So rows of unquantised parameters, which vLLM makes uninitialised, are
marked before the load, and looked for after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dray.errors import WeightsError

if TYPE_CHECKING:
    import torch

_MARK = bytes(range(0xA0, 0xB0))  # 16 bytes at the start of a row; no trained weights look like this
_BORROWED = {"has_own_embed_tokens": ("embed_tokens",), "has_own_lm_head": ("lm_head", "shared_head.head")}
_OF_ACTIVATIONS = re.compile(r"(?:w\d+_)?(?:input|act)_\w*(?:scale|zero_point)\w*")
_OF_WEIGHTS = re.compile(r"(?:w\d+_)?(?:weight_zero_point|qzeros)")
_UNINITIALISED = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod", "UnquantizedFusedMoEMethod")


class Completeness:
    """Made before a model is loaded, asked after."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._marked = {name: _starts(rows) for name, rows in _markable(model)}
        for starts in self._marked.values():
            starts.copy_(_mark(starts))

    def refuse_missing(
        self, loaded: set[str] | None, name: str, *, borrowed: frozenset[str] = frozenset()
    ) -> None:
        """Refuse a model of which something was not loaded; ``loaded`` is what it says itself.

        Parameters of modules that are ``borrowed``, by the last parts of their names, need not be there.

        Raises:
            WeightsError: names the parameters.
        """
        unfilled = [
            parameter
            for parameter, starts in self._marked.items()
            if bool((starts == _mark(starts)).all(dim=-1).any())
        ]
        found = {*unfilled, *_untracked(self._model, loaded)}
        missing = sorted(one for one in found if not _is_of(one, borrowed))
        if missing:
            shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
            raise WeightsError(
                f"model {name}: its checkpoint lacks weights, or parts of them, for {shown}; "
                "is it complete, and of this architecture?"
            )


def borrowed_by(model: Any, model_config: Any, speculative_config: Any) -> frozenset[str]:
    """The modules for which vLLM gives a draft those of its target once it is loaded, in place of its own.

    A draft says itself what it has of its own (vLLM 0.32, ``v1/spec_decode/llm_base_proposer.py``, and
    ``eagle/utils.py``). Llama's classes say "nothing" as targets and as drafts of other methods, too. So only
    drafts of EAGLE's kind are asked.
    """
    if getattr(model_config, "runner_type", None) != "draft" or speculative_config is None:
        return frozenset()
    if not speculative_config.use_eagle():  # EAGLE, MTP and what is built like them
        return frozenset()
    return frozenset(
        module for says, modules in _BORROWED.items() if not getattr(model, says, False) for module in modules
    )


def _is_of(parameter: str, modules: Iterable[str]) -> bool:
    module = f".{parameter.rpartition('.')[0]}"
    return any(module.endswith(f".{one}") for one in modules)


def _markable(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Rows, of at least a mark's length, that hold nothing yet and get something of each checkpoint."""
    for module_name, module in model.named_modules():
        method = type(getattr(module, "quant_method", None)).__name__
        if not method.endswith(_UNINITIALISED):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            data = parameter.data
            long_enough = data.dim() >= 2 and data.shape[-1] * data.element_size() >= len(_MARK)
            if long_enough and data.numel() and data.is_contiguous() and not data.is_meta:
                yield f"{module_name}.{name}", _filled(data, name, module)


def _filled(data: torch.Tensor, name: str, module: Any) -> torch.Tensor:
    """The rows that a checkpoint fills, as a view.

    Some kernels want the experts' sizes rounded up (vLLM 0.32, ``fused_moe/oracle/unquantized.py``). What is
    beyond the checkpoint's sizes is not loaded: vLLM makes it zero afterwards.
    """
    config = getattr(module, "moe_config", None)
    if config is not None and name == "w13_weight":
        halves = 2 if config.is_act_and_mul else 1
        rows = data.view(data.shape[0], halves, -1, data.shape[-1])
        return rows[:, :, : config.intermediate_size_per_partition_unpadded]
    if config is not None and name == "w2_weight":
        return data[:, : config.hidden_dim_unpadded]
    return data


def _starts(data: torch.Tensor) -> torch.Tensor:
    """The first bytes of each row, as a view: ... x 16."""
    import torch

    return data.view(torch.uint8)[..., : len(_MARK)]


def _mark(data: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.tensor(list(_MARK), dtype=torch.uint8, device=data.device)


def _untracked(model: Any, loaded: set[str] | None) -> list[str]:
    """What vLLM's check finds, with its exemptions for quantised models alone, and :func:`_may_lack`'s."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    if loaded is None:  # this model does not say what it loaded
        return []
    try:
        # It looks at its arguments alone.
        DefaultModelLoader.track_weights_loading(None, model, set(loaded), quantized=True)
    except ValueError as error:
        names = str(error).partition("{")[2].rpartition("}")[0]
        found = [name.strip(" '\"") for name in names.split(",")]
        return [name for name in found if not _may_lack(model, name)]
    return []


def _may_lack(model: torch.nn.Module, parameter: str) -> bool:
    """Whether vLLM made a parameter of a quantised layer that a sound checkpoint need not hold.

    vLLM 0.32 makes scales of activations for weight-only checkpoints too (NVFP4 with 16-bit activations), and
    zero points for experts that Quark quantised symmetrically. It drops or ignores them after the load.
    """
    module, _, name = parameter.rpartition(".")
    method = getattr(model.get_submodule(module), "quant_method", None)
    if method is None:
        return False
    if _OF_WEIGHTS.fullmatch(name):
        return getattr(method, "is_symmetric", False) is True
    return _OF_ACTIVATIONS.fullmatch(name) is not None
