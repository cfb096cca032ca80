"""What Prefect's UI shows of a running job, and what is asked for there."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Self
from uuid import UUID

from prefect import get_run_logger, runtime
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client

LOOK_EVERY = 5.0  # seconds; a run without a Prefect worker is told by nobody that it was cancelled in the UI
WRITE_EVERY = 3.0  # Prefect's server on SQLite serialises writes
_TICK = 0.5
_LAST_WORD_SECONDS = 10.0


class Bulletin:
    """The job's progress artifact, and its run's state, in a thread of their own.

    A call to Prefect's API takes a minute when that is away, and whoever renews leases must not wait for it.
    Nothing here is needed: it is for people.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._logger = get_run_logger()
        self._flow_run = runtime.flow_run.id
        self._over = threading.Event()
        self._artifact: UUID | None = None
        self._share = self._shown = -1.0
        self.cancelled = False

    def __enter__(self) -> Self:
        run = contextvars.copy_context().run  # Prefect knows by it which run an artifact belongs to
        self._thread = threading.Thread(target=run, args=(self._run,), name="dray-bulletin", daemon=True)
        self.show(0.0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_LAST_WORD_SECONDS)

    def show(self, share: float) -> None:
        """The percentage of rows that are finished."""
        self._share = round(share, 1)

    def _run(self) -> None:
        written = 0.0
        looked = time.monotonic()
        while True:
            over = self._over.wait(_TICK)
            if self._share != self._shown and (over or time.monotonic() - written > WRITE_EVERY):
                self._write(self._share)
                written = time.monotonic()
            if over:
                return
            if time.monotonic() - looked > LOOK_EVERY:
                self.cancelled = self.cancelled or is_cancelled(self._flow_run)
                looked = time.monotonic()

    def _write(self, share: float) -> None:
        try:
            if self._artifact is None:
                self._artifact = create_progress_artifact(
                    progress=share, key="batch-progress", description=f"Rows finished of job {self._job_id}"
                )  # type: ignore[assignment]  # the synchronous form returns the id
            else:
                update_progress_artifact(self._artifact, progress=share)
        except Exception as error:  # noqa: BLE001  Prefect's API being away must not stop the job
            self._logger.debug("progress artifact not written: %s", type(error).__name__)
        else:
            self._shown = share


def is_cancelled(flow_run: str | None) -> bool:
    """Whether somebody cancelled the flow run; not knowing is no."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(str(flow_run))).state
    except Exception:  # noqa: BLE001  Prefect's API being away must not stop the job
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())
