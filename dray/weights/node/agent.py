"""The node's agent: fetches models for all replicas of its node, and serves them to the other nodes.

It holds no bytes itself: they lie in the node's cache. When the agent dies, a process that has the model open
goes on with the fetch. The class knows nothing of Ray.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from dray.errors import WeightsError
from dray.storage.objects import ObjectStoreOptions
from dray.weights.node.cache import evict
from dray.weights.node.local import LocalModel, ModelProgress
from dray.weights.node.peers import Peer, PeerServer, PeerView
from dray.weights.source.manifest import Manifest


class Agent:
    """One per node. ``name`` is the node's; ``host`` is the address that the other nodes reach."""

    def __init__(self, name: str, host: str) -> None:
        self._name = name
        self._guard = threading.Lock()
        self._models: dict[str, LocalModel] = {}
        self._views: dict[str, PeerView] = {}
        self._holders: dict[str, dict[str, float]] = {}  # by model: each holder, and when it last asked
        self._peers: dict[str, Peer] = {}
        self._server = PeerServer(name, host, self._models.get)

    def peer(self) -> Peer:
        """Where this node serves its chunks."""
        return self._server.peer

    def meet(self, peers: Mapping[str, Peer]) -> None:
        """These are the nodes of the cluster."""
        self._peers = {name: peer for name, peer in peers.items() if name != self._name}

    def hold(self, manifest: Manifest, options: ObjectStoreOptions | None, holder: str) -> ModelProgress:
        """Have the model here, until ``holder`` drops it; returns at once. A later call reports progress.

        Each call renews the holder's lease, which :meth:`lapse` ends.
        A node without room for it says so in ``failure``.
        """
        key = manifest.key
        with self._guard:
            if key in self._models and self._failed(key):
                self._let_go(key)
            if key not in self._models:
                try:
                    self._open(manifest, options)
                except WeightsError as error:
                    return _nothing(self._name, manifest, str(error))
            self._holders.setdefault(key, {})[holder] = time.monotonic()
        return self._models[key].describe(self._name)

    def drop(self, holder: str, *, remove: bool = False) -> None:
        """``holder`` needs its models no longer; ``remove``: no other holder is likely to either."""
        with self._guard:
            for key in list(self._holders):
                self._holders[key].pop(holder, None)
                if not self._holders[key]:
                    place = self._models[key].paths.place
                    self._let_go(key)
                    if remove:
                        evict(place, {key})

    def lapse(self, seconds: float) -> None:
        """Drop the holders that have not called :meth:`hold` for so long: their drivers died."""
        before = time.monotonic() - seconds
        with self._guard:
            for key, holders in list(self._holders.items()):
                kept = {holder: asked for holder, asked in holders.items() if asked >= before}
                self._holders[key] = kept
                if not kept:
                    self._let_go(key)

    def idle(self) -> bool:
        """Whether no model has a holder."""
        return not self._holders

    def close(self, *, remove: bool) -> None:
        """Let go of everything."""
        self._server.stop()
        with self._guard:
            places = {model.paths.place for model in self._models.values()}
            for key in list(self._models):
                self._let_go(key)
        if remove:
            for place in places:
                if place.memory:
                    evict(place)

    def _failed(self, key: str) -> bool:
        """Whether a fetch failed, so that the next :meth:`hold` tries again."""
        return self._models[key].failure() is not None

    def _open(self, manifest: Manifest, options: ObjectStoreOptions | None) -> None:
        view = PeerView(manifest.key, self._name, lambda: self._peers)
        try:
            self._models[manifest.key] = LocalModel(manifest, options, peers=view)
        except BaseException:
            view.close()
            raise
        self._views[manifest.key] = view

    def _let_go(self, key: str) -> None:
        self._views.pop(key).close()
        self._models.pop(key).close()
        self._holders.pop(key, None)


def _nothing(node: str, manifest: Manifest, failure: str) -> ModelProgress:
    now = time.time()
    return ModelProgress(
        node=node, ready=0, size=manifest.size, root="", memory=False, began=now, moved=now, failure=failure
    )
