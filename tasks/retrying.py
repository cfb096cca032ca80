"""Which failures of a shard task are worth another try."""

from __future__ import annotations

from typing import Any

from dray.errors import EngineDeadError, ReplicaLostError, StoreTransientError, StoreUnreachableError

RETRIES = 8
# Prefect's own jitter setting is ignored by its task engine; the wait for a live replica spreads the tries.
DELAYS: list[float] = [1, 2, 5, 10, 20, 30, 60, 60]

# A store that cannot be reached was there when the job was opened: its server restarts.
_TRANSIENT = (ReplicaLostError, EngineDeadError, StoreTransientError, StoreUnreachableError)


def worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
    """A lost replica or store comes back; a refused, fenced or cancelled shard does not.

    A plain function of this module: Prefect silently turns retries off for anything else.
    """
    try:
        state.result()
    except _TRANSIENT:
        return True
    except BaseException:  # noqa: BLE001  the verdict on every other error is the same: no
        return False
    return False
