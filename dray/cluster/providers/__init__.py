"""Where clusters come from: this machine, an address, or machines that are rented for the job."""

from dray.cluster.providers.protocol import (
    Access,
    Market,
    Phase,
    ProviderSettings,
)

__all__ = [
    "Access",
    "Market",
    "Phase",
    "ProviderSettings",
]
