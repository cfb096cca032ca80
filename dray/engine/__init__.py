"""Engines and the replica around them. vLLM is imported only inside a replica's process."""

from __future__ import annotations

from dray.engine.protocol import Engine, EngineInfo, EngineSpec
from dray.engine.replica import Replica, ReplicaStatus

__all__ = ["Engine", "EngineInfo", "EngineSpec", "Replica", "ReplicaStatus"]
