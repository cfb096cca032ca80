"""The commit of a hub at which a job reads its model: it stays, also while the branch moves.

Another commit with the same files of the model leaves the job what it is. One that changes them would make it
another job; a job that has rows goes on at its own commit instead.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from dray.errors import ConfigError, StoreError
from dray.job.options.checks import check_weights
from dray.job.options.settings import JobSettings
from dray.store import Job, open_store
from dray.weights import Manifest
from dray.weights.source.hub import is_hub

_MODEL_AT = "model_at"


def noted(weights: Manifest | None) -> dict[str, str]:
    """What a job's settings in the store say of the commit; nothing of a model that is not on a hub."""
    return {_MODEL_AT: weights.uri} if weights is not None and is_hub(weights.uri) else {}


def weights_as_begun(settings: JobSettings, *, resume: bool) -> Manifest | None:
    """The state of the model, at the commit of the job that the settings name.

    It is that of the address as given for a new job, for one without rows, and for one that is over, unless
    that is to ``resume``.

    Raises:
        ConfigError: the model, or an option that does not go with it, cannot be used.
    """
    at = _commit_of(settings, resume=resume)
    if at is not None:
        with suppress(ConfigError):  # the hub keeps it no more, and the branch may have the same files
            return check_weights(replace(settings, model=at))
    return check_weights(settings)


def _commit_of(settings: JobSettings, *, resume: bool) -> str | None:
    if settings.job_id is None or settings.engine == "simulated" or not is_hub(settings.model):
        return None
    job: Job | None = None
    with suppress(StoreError, ConfigError), open_store(settings.store_url, create=False) as store:
        job = store.find_job(settings.job_id)
    if job is None or job.total is None or job.settings.get("model") != settings.model:
        return None
    return job.settings.get(_MODEL_AT) if resume or not job.state.answered else None
