"""How far a running job is, on its run's page in Prefect."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Self
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from tasks.page import artifact_key
from tasks.prefect_run import api_answers

WRITE_EVERY = 3.0  # Prefect's server on SQLite serialises writes
_TICK = 0.5
_LAST_WORD_SECONDS = 10.0


class ProgressArtifact:
    """The job's progress artifact, written in a thread of its own.

    A call to Prefect's API takes a minute when that is away. The driver must not wait
    for it. Nothing here is needed: it is for people.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._logger = get_run_logger()
        self._over = threading.Event()
        self._artifact: UUID | None = None
        self._share = self._shown = -1.0

    def __enter__(self) -> Self:
        run = contextvars.copy_context().run  # Prefect knows by it which run an artifact belongs to
        self._thread = threading.Thread(target=run, args=(self._run,), name="dray-progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_LAST_WORD_SECONDS)
        # A call that began while the API was away sleeps between its tries, also when the API is back.
        if self._share != self._shown and api_answers():
            self._write(self._share)

    def show(self, share: float) -> None:
        """The percentage of rows that are finished."""
        self._share = round(share, 1)

    def _run(self) -> None:
        written = 0.0
        while True:
            over = self._over.wait(_TICK)
            if self._share != self._shown and (over or time.monotonic() - written > WRITE_EVERY):
                self._write(self._share)
                written = time.monotonic()
            if over:
                return

    def _write(self, share: float) -> None:
        try:
            if self._artifact is None:
                self._artifact = create_progress_artifact(
                    progress=share,
                    key=artifact_key(self._job_id, "progress"),
                    description=f"Rows finished of job {self._job_id}",
                )  # type: ignore[assignment]  # the synchronous form returns the id
            else:
                update_progress_artifact(self._artifact, progress=share)
        except Exception as error:  # noqa: BLE001  Prefect's API being away must not stop the job
            self._logger.debug("progress artifact not written: %s", type(error).__name__)
        else:
            self._shown = share
