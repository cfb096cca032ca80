"""What EC2 answers, in dray's own words: the machines that it gave, and why it gave no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dray.cluster.providers.ec2.errors import BUSY


class Shortage(StrEnum):
    """Why a fleet did not give a machine: the pool has none, a quota is used up, the price has risen, ..."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    PRICE = "price"
    UNSUPPORTED = "unsupported"
    BUSY = "busy"


_SHORTAGES = {
    "InsufficientInstanceCapacity": Shortage.CAPACITY,
    "InsufficientHostCapacity": Shortage.CAPACITY,
    "InsufficientReservedInstanceCapacity": Shortage.CAPACITY,
    "InsufficientCapacity": Shortage.CAPACITY,
    "InsufficientCapacityOnOutpost": Shortage.CAPACITY,
    "InsufficientFreeAddressesInSubnet": Shortage.CAPACITY,
    "UnfulfillableCapacity": Shortage.CAPACITY,
    "MaxSpotInstanceCountExceeded": Shortage.QUOTA,
    "SpotMaxPriceTooLow": Shortage.PRICE,
    "InstanceLimitExceeded": Shortage.QUOTA,
    "VcpuLimitExceeded": Shortage.QUOTA,
    "MaxFleetCountExceeded": Shortage.QUOTA,
    "Unsupported": Shortage.UNSUPPORTED,
    "UnsupportedOperation": Shortage.UNSUPPORTED,
    "InvalidFleetConfiguration": Shortage.UNSUPPORTED,
    **dict.fromkeys(BUSY, Shortage.BUSY),  # inside an answer of CreateFleet, where botocore does not retry
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One pool of a fleet that gave nothing; ``kind`` and ``subnet`` are empty where AWS names no pool."""

    code: str
    message: str
    kind: str = ""
    subnet: str = ""

    @property
    def shortage(self) -> Shortage | None:
        """Why; None for what is no shortage: the request itself is at fault."""
        return _SHORTAGES.get(self.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """What an instant fleet gave: ids by type and subnet, and what it did not."""

    instances: tuple[tuple[str, str, str], ...]  # id, type, subnet
    refused: tuple[Refused, ...]

    @property
    def busy(self) -> bool:
        """Whether EC2 gave nothing, for no other reason than that it took no more calls."""
        why = {one.shortage for one in self.refused}
        return not self.instances and why == {Shortage.BUSY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How far a command of Systems Manager is, and the lines that it wrote, once it has ended."""

    status: str
    detail: str
    output: str


def state_reason(described: Mapping[str, Any]) -> str:
    """Why an instance is in its state, as EC2 says: a quota of volumes, a key that is refused, ..."""
    said = described.get("StateReason") or {}
    code, message = str(said.get("Code") or ""), str(said.get("Message") or "")
    return message if message.startswith(code) else f"{code}: {message}".removesuffix(": ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An instance as EC2 describes it."""

    id: str
    kind: str
    zone: str
    state: str
    spot: bool
    address: str
    tags: Mapping[str, str]
