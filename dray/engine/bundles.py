"""The cache bundle of one engine: restored before vLLM is imported, saved once it has answered."""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.engine.protocol import EngineSpec
from dray.storage.objects import ObjectStoreOptions
from dray.weights.bundle import (
    bundle_key,
    bundle_root,
    cache_environment,
    restore,
    save,
    versions_and_hardware,
)

_NOT_COMPILED = (
    "VLLM_CACHE_ROOT",
    "VLLM_HOST",
    "VLLM_PORT",
    "VLLM_RPC_BASE_PATH",
    "VLLM_LOG",
    "VLLM_CONFIGURE_LOGGING",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Where the caches of this engine are kept, and where they lie on this node."""

    location: str
    key: str
    root: Path
    options: ObjectStoreOptions | None

    @classmethod
    def restored(cls, spec: EngineSpec, model: Path) -> Bundle | None:
        """Point vLLM's caches at a folder of this bundle's own, and fill it where there is a bundle.

        Does nothing, and returns None, unless the user named a place for bundles.
        """
        if spec.bundles is None:
            return None
        versions, hardware = versions_and_hardware()
        key = bundle_key(
            model_key=spec.weights.key if spec.weights is not None else _config_digest(model),
            versions=versions,
            hardware=hardware,
            configuration=_configuration(spec, model),
        )
        bundle = cls(location=spec.bundles, key=key, root=bundle_root(key), options=spec.objects)
        for name, value in cache_environment(bundle.root).items():
            os.environ.setdefault(name, value)  # what the user set stays
        restore(bundle.location, key, bundle.root, bundle.options)
        return bundle

    def save(self) -> None:
        """Keep it for the next engine, where there is none yet; in the background."""
        arguments = (self.location, self.key, self.root, self.options)
        threading.Thread(target=save, args=arguments, name="dray-bundle", daemon=True).start()


def _configuration(spec: EngineSpec, model: Path) -> dict[str, Any]:
    """What decides what is compiled; vLLM's own key holds the path of the model's folder too."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("VLLM_") and not name.startswith(_NOT_COMPILED)
    }
    return {**spec.arguments, "model": str(model), "kind": str(spec.kind), "environment": variables}


def _config_digest(model: Path) -> str:
    file = model / "config.json"
    return hashlib.sha256(file.read_bytes() if file.is_file() else b"").hexdigest()
