"""The cache bundle: what vLLM compiled and inspected at its start, kept for the next replica, on any node.

A bundle is one object, ``LOCATION/KEY.tar.zst``: a tar of the folder that ``cache_environment`` makes vLLM
and its compilers write to, and behind it its SHA-256 in a frame that zstd skips, so that ``tar --zstd -tf``
lists it. One object is written in one go: a reader sees all of it, or nothing.

Trust: a bundle holds compiled code and pickles, which replicas load and run. A user who may write to its
location can run code in the replicas of every user who names that location. The digest finds damage, not
intent: it lies beside what it vouches for. So there is no bundle unless the user names a location. The
location must be writable only to users who may run code in the replicas anyway. The same holds for the
folder that bundles are unpacked into, which is therefore refused when other users can write to it.

Paths: Triton's groups and ninja's logs hold absolute paths (``put_group`` in triton/runtime/cache.py;
FlashInfer's build.ninja), so a bundle is of full use only in a folder of the same name. The name is part of
the key: nodes that keep bundles elsewhere have bundles of their own. vLLM hashes the model's path too
(``ModelConfig.compute_hash`` in vllm/config/model.py): callers put it into the configuration.
"""

from __future__ import annotations

from dray.weights.bundle.environment import FOLDER_VARIABLE, bundle_folder, bundle_root, cache_environment
from dray.weights.bundle.key import bundle_key, versions_and_hardware
from dray.weights.bundle.restoring import restore
from dray.weights.bundle.saving import save

__all__ = [
    "FOLDER_VARIABLE",
    "bundle_folder",
    "bundle_key",
    "bundle_root",
    "cache_environment",
    "restore",
    "save",
    "versions_and_hardware",
]
