"""The model's folder for one engine, from before its imports until it is built."""

from __future__ import annotations

import threading
from typing import Any

from dray.engine.argument_policy import load_format_of
from dray.engine.protocol import EngineSpec
from dray.weights import LocalModel
from dray.weights.source.configuration import in_torchaos_pieces


class EngineModel:
    """A model in an object store begins to arrive when the block begins, beside what the block does.

    With vLLM's own load formats the whole model is waited for; dray's loads what is there, while the rest
    arrives. What torchao stored is left to vLLM's own, unless the user names one.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._model = spec.model
        self._format = load_format_of(spec.arguments)
        self._local = None
        if spec.weights is not None:
            self._local = LocalModel(spec.weights, spec.objects, patience=spec.weights_patience)

    def __enter__(self) -> EngineModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._local is None:
            return
        if kind is not None:
            self._local.close()
            return
        if any(file.sha256 and not file.digests for file in self._local.manifest.files):
            try:
                self._local.wait_whole()  # only the whole file can be verified
            except BaseException:
                self._local.close()
                raise
        # The process that fills it may still have to publish it. The engine does not wait for that.
        threading.Thread(target=_close, args=(self._local,), name="dray-weights-end", daemon=True).start()

    def arguments(self) -> dict[str, Any]:
        """The engine's arguments ``model`` and, where it is dray's to say, ``load_format``; waits.

        Raises:
            WeightsError: the model cannot be had, or is damaged.
        """
        if self._local is None:
            return {"model": self._model}
        if self._format is None or self._format == "dray":
            folder = self._local.wait_engine()
            if self._format is not None or not in_torchaos_pieces(folder):
                return {"model": str(folder), "load_format": "dray"}
        return {"model": str(self._local.wait_whole())}

    def span(self) -> tuple[float, float] | None:
        """When the fetch of the model that was used began and ended, in seconds since 1970."""
        return self._local.ready.span if self._local is not None else None


def _close(model: LocalModel) -> None:
    try:
        model.wait_whole()
    finally:
        model.close()
