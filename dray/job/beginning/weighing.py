"""Make sure that a job goes on with the weights that it began with, where they are files of this machine.

The fingerprint holds their names, sizes and headers, which costs nothing. Every byte is read beside the start
of Ray and of the engines; a job that goes on is held to what was noted at first, before any row is run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dray.errors import JobChangedError, StoreError, WeightsError
from dray.job.open_job import OpenJob, reopen
from dray.weights.source.content import content_digests

WEIGHTS = "weights_blake3"
"""Where the job's ``info`` has the digest of each of its weight files."""

_LOOK_SECONDS = 0.5


class Weighing:
    """The digests of a job's local weights, computed while the block runs."""

    def __init__(self, job: OpenJob) -> None:
        self._job = job
        self._noted: Mapping[str, str] | None = None
        self._found: dict[str, str] | None = None
        self._error: WeightsError | None = None
        self._over = threading.Event()
        self._done = threading.Event()

    def __enter__(self) -> Weighing:
        settings = self._job.settings
        if self._job.weights is not None or settings.engine == "simulated" or settings.has_dummy_weights:
            self._done.set()
            return self
        with reopen(self._job) as store:
            noted = store.get_job(self._job.job_id).info.get(WEIGHTS)
            if store.counts(self._job.job_id).done:
                self._noted = noted
            elif noted is not None:  # no row has an answer of these files, and they may be others by now
                store.merge_job_info(self._job.lease, {WEIGHTS: None})
        threading.Thread(target=self._weigh, name="dray-weighing", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def check(self, look: Callable[[], None] = lambda: None) -> None:
        """Hold a job with answered rows to the weights that gave them; others are not waited for.

        ``look`` is called while this waits, and may raise.

        Raises:
            JobChangedError: they are other ones; names the files.
            WeightsError: they cannot be read.
        """
        if self._noted is None:
            return
        while not self._done.wait(_LOOK_SECONDS):
            look()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        changed = sorted(
            name for name in {*self._noted, *self._found} if self._noted.get(name) != self._found.get(name)
        )
        if changed:
            raise JobChangedError(
                f"job {self._job.job_id}: {', '.join(changed[:5])} in {self._job.settings.model} changed "
                "since its first rows were answered: it is another model. Give another --job-id to start "
                "anew, or put the former files back"
            )

    def _weigh(self) -> None:
        try:
            self._found = content_digests(Path(self._job.settings.model), stopped=self._over.is_set)
            if self._noted is None:
                with suppress(StoreError), reopen(self._job) as store:
                    store.merge_job_info(self._job.lease, {WEIGHTS: self._found})
        except WeightsError as error:
            self._error = error
        finally:
            self._done.set()
