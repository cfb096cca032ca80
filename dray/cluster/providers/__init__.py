"""Where clusters come from: this machine, an address, or machines that are rented for the job."""

from dray.cluster.providers.protocol import (
    Access,
    Expired,
    Grant,
    Machine,
    Market,
    Phase,
    Planned,
    Provider,
    ProviderSettings,
    RunsOnHead,
)

__all__ = [
    "Access",
    "Expired",
    "Grant",
    "Machine",
    "Market",
    "Phase",
    "Planned",
    "Provider",
    "ProviderSettings",
    "RunsOnHead",
]
