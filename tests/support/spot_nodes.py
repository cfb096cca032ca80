"""Spot nodes on this machine: raylets that are announced to go, by a metadata service each, and that go."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.metadata_server import MetadataServer
from tests.support.raylets import Raylets, Shape


@dataclass
class SpotNodes:
    """Spot nodes, each with a metadata service of its own, and a head that stays."""

    raylets: Raylets
    count: int
    servers: dict[int, MetadataServer] = field(default_factory=dict)

    def refill(self) -> None:
        """As many nodes as a test expects, none of them touched."""
        while len(self.servers) < self.count:
            server = MetadataServer("aws")
            server.__enter__()
            self.raylets.add({"DRAY_METADATA_AWS": server.url})
            self.servers[len(self.raylets.nodes) - 1] = server

    def announce(self, node: int, seconds: float = 120.0) -> None:
        """AWS says that it takes the instance back."""
        self.servers[node].interrupt(seconds=seconds)

    def kill(self, node: int) -> None:
        """The node is gone at once."""
        self.raylets.kill(node)
        self.forget(node)

    def forget(self, node: int) -> None:
        """The next test gets another in its place."""
        self.servers.pop(node).__exit__(None, None, None)

    def replace_lost(self) -> int:
        """Others in the place of nodes that Ray has found dead; how many there were."""
        dead = self.raylets.dead()
        lost = [number for number in self.servers if self.raylets.nodes[number] in dead]
        for number in lost:
            self.forget(number)
        self.refill()
        return len(lost)

    def close(self) -> None:
        """End all."""
        for node in list(self.servers):
            self.forget(node)
        self.raylets.stop()

    @classmethod
    def beside_a_head(cls, folder: Path, count: int) -> SpotNodes:
        """One processor each, so one replica; the head has none, so no replica. Ray finds losses soon."""
        shape = Shape(head_cpus=0, cpus=1, impatient=True)
        return cls(Raylets(folder, 1, shape=shape), count)
