"""vLLM's load format ``dray``: parameters from views of a model's files, while they still arrive.

Registered by :func:`register`, which vLLM calls in each of its processes by the entry point
``dray`` of ``vllm.general_plugins``, spawned workers among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.errors import WeightsError
from dray.weights.loading.completeness import Completeness, borrowed_by
from dray.weights.loading.device import to_device
from dray.weights.loading.ranks import tell_times, told
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.source.configuration import in_torchaos_pieces

if TYPE_CHECKING:
    import torch

LOAD_FORMAT = "dray"

_HEADROOM = 1 << 30  # bytes of a device's memory that copies on their way leave free


def register() -> None:
    """Make the load format known to vLLM in this process; again does nothing."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER

    if LOAD_FORMAT not in _LOAD_FORMAT_TO_MODEL_LOADER:
        # All that register_model_loader does, but a line with the class's repr in every job's log.
        _LOAD_FORMAT_TO_MODEL_LOADER[LOAD_FORMAT] = _loader_class()


def _loader_class() -> type:
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class DrayModelLoader(BaseModelLoader):  # type: ignore[misc]  # vLLM is untyped here
        """Loads what :class:`StreamedWeights` yields."""

        def download_model(self, model_config: Any) -> None:
            """Do nothing: ``LocalModel`` fetches into the folder."""

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
            """Load all tensors, then make sure that each parameter got its own."""
            with told():
                load(model, model_config)

    return DrayModelLoader


def _device_of(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def _borrowed(model: Any, model_config: Any) -> frozenset[str]:
    """What vLLM will take from the target, if this is a draft."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return borrowed_by(model, model_config, config.speculative_config if config is not None else None)


def load(model: Any, model_config: Any) -> None:
    """Load a model's weights from the folder that ``model_config`` names.

    Raises:
        WeightsError: weights are damaged or incomplete, or cannot be had; names file and tensor.
    """
    folder = Path(model_config.model)
    if getattr(model, "secondary_weights", ()):
        raise WeightsError(
            f"model {folder}: it takes weights of a second model, which load format dray does not read"
        )
    if in_torchaos_pieces(folder):
        raise WeightsError(
            f"model {folder}: torchao stored its weights in pieces, which load format dray does not put "
            "together; give --engine-arg load_format=safetensors, or none: vLLM's own loader does"
        )
    weights = StreamedWeights.of(folder)
    completeness = Completeness(model)
    loaded = model.load_weights(to_device(weights.tensors(), _device_of(model), headroom_bytes=_HEADROOM))
    completeness.refuse_missing(loaded, weights.name, borrowed=_borrowed(model, model_config))
    tell_times(weights.stats.seconds, weights.stats.waited)
