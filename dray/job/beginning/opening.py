"""Open a job: a new one, or the same one resumed."""

from __future__ import annotations

import time
import uuid
from dataclasses import fields

from dray.errors import ConfigError, DrayError, UnknownJobError
from dray.job import current_job
from dray.job.beginning.identity import fingerprint_of, former_fingerprints
from dray.job.beginning.input_as_begun import input_as_begun, input_named
from dray.job.beginning.pinned_model import noted, weights_as_begun
from dray.job.beginning.prompt_day import DAY, asked_of, day_of
from dray.job.beginning.query_jobs import AskedJob, asked_job, known_job, order_told
from dray.job.open_job import OpenJob
from dray.job.options.checks import check_arguments, check_inputs, check_media
from dray.job.options.settings import JobSettings
from dray.owner import is_gone, owner_name
from dray.requests.reading.inputs import states
from dray.requests.reading.readers import files_of
from dray.requests.row_shape import RowShape
from dray.requests.sources import Source
from dray.storage.folders import Owner, owner_of, refuse_foreign, take
from dray.storage.layout import published_names
from dray.storage.same_place import same_place
from dray.storage.writable import check_writable
from dray.store import Fingerprint, Job, JobLease, Store, open_store, store_option
from dray.store.calls.jobs import JOB_TTL
from dray.store.lasting_info import IDENTITY, OF_OTHERS, OUTPUTS
from dray.triggers import Point, reach
from dray.weights import Manifest

DRIVER_TTL = JOB_TTL  # seconds; renewed every quarter of it


def open_job(settings: JobSettings, *, started: float | None = None, resume: bool = False) -> OpenJob:
    """Check what can be checked without reading the rows, then create or resume the job and drive it.

    One that was cancelled goes on with ``resume`` only: a restart policy repeats commands by itself. In the
    block of :func:`current_job.begun_before` the files of an input that was taken in are not looked at.

    Raises:
        ConfigError: a setting, the model, the output or the store cannot be used, or the output folder
            belongs to another job.
        InputError: the input is missing.
        JobChangedError: the id belongs to a job with other content, or another command gave it that since
            this one created or found it; names what changed.
        JobBusyError: another live process drives it.
        CancelledError: it was cancelled, and ``resume`` is false.
        UnknownJobError: it was to be there (:func:`current_job.begun_before`), and is not.
    """
    check_arguments(settings)
    weights = weights_as_begun(settings, resume=resume)
    check_media(settings)
    check_writable(settings.output, options=settings.objects)
    check_inputs(settings)
    taken = input_as_begun(settings)
    inputs = {} if taken else states(files_of(settings.source, options=settings.objects))
    with open_store(settings.store_url) as store:
        fingerprint = _as_begun(store, settings, fingerprint_of(settings, weights, taken=taken), weights)
        job_id, known, older = asked_job(store, settings, fingerprint, resume=resume)
        if known is None and current_job.is_begun(job_id):
            raise UnknownJobError(f"job {job_id!r} is not in its store: there is nothing to go on with")
        _refuse_foreign(store, settings, fingerprint, AskedJob(job_id, known, older))
        asked_day = asked_of(known)
        store.create_job(job_id, fingerprint=fingerprint, settings=_kept(settings, known, weights))
        lease = _claimed(store, job_id, fingerprint, resume=resume)
        claimed = store.driven_job(lease)  # another run may have had it since it was looked for
        identity = _take_folder(store, settings, lease, known, claimed)
        kept = _kept(settings, claimed, weights) | ({"input": claimed.settings.get("input")} if taken else {})
        if claimed.settings != kept:  # an earlier run's: its output and its other options may not be these
            store.set_job_settings(lease, kept)
        store.set_expiry(lease, settings.completion_window)
        prompt_day = _noted_day(store, lease, claimed, asked_day)
        counts = store.counts(job_id)
        now, expires_at = store.now(), store.get_job(job_id).expires_at
        job = OpenJob(
            job_id=job_id,
            settings=settings,
            lease=lease,
            resumed=claimed.total is not None,
            skipped=counts.done + counts.failed,
            skipped_failed=counts.failed,
            started=started or time.time(),
            opened=now,
            due=None if expires_at is None else time.monotonic() + max(0.0, expires_at - now),
            weights=weights,
            identity=identity,
            prompt_day=prompt_day,
            older=older,
            inputs=inputs,
            found=None if known is None else known.state,
        )
    current_job.note(job)
    return job


def owner_of_job(job: Job, name: str | None = None) -> Owner:
    """The name that output folders have of the job; an earlier version's job goes by when it was created.

    ``name`` is that of a job that has another one in the store by now.
    """
    return Owner(job_id=name or job.job_id, identity=job.info.get(IDENTITY) or f"of {job.created_at!r}")


def _claimed(store: Store, job_id: str, fingerprint: Fingerprint, *, resume: bool) -> JobLease:
    lease = store.claim_job(
        job_id,
        owner_name(),
        fingerprint=fingerprint,
        ttl=DRIVER_TTL,
        takeover=is_gone,
        resume=resume,
    )
    reach(Point.JOB_CLAIMED)
    return lease


def _noted_day(store: Store, lease: JobLease, claimed: Job, asked: str | None) -> str:
    """The day that prompts have as today, which the store has from before the first row is taken in."""
    day = day_of(claimed, asked)
    if claimed.total is None and claimed.info.get(DAY) != day:
        store.merge_job_info(lease, {DAY: day})
    return day


def _as_begun(
    store: Store, settings: JobSettings, fingerprint: Fingerprint, weights: Manifest | None = None
) -> Fingerprint:
    """The fingerprint, or the one that an earlier version of dray gave this job where it began it."""
    for former in former_fingerprints(settings, fingerprint, weights):
        known = known_job(store, settings, former)
        if known is not None and known.fingerprint == former:
            return former
    return fingerprint


def _refuse_foreign(store: Store, settings: JobSettings, fingerprint: Fingerprint, asked: AskedJob) -> None:
    """Before the job is created: an output folder with the files of others is refused."""
    if settings.overwrite:
        return
    job_id, known, older = asked
    identity = known.info.get(IDENTITY, "") if known is not None else ""  # "" is in no folder's marker
    try:
        refuse_foreign(
            settings.output,
            Owner(job_id=job_id, identity=identity),
            published_names(),
            legacy=known is not None and is_output_of(known, settings.output),
            options=settings.objects,
        )
    except ConfigError as error:
        if older is None:
            _tell_change(store, settings, fingerprint)
            raise
        raise ConfigError(
            f"the query gives other rows than those that job {older} has answered{order_told(settings)}, so "
            f"they are a new job, {job_id}; {error}"
        ) from error


def _tell_change(store: Store, settings: JobSettings, fingerprint: Fingerprint) -> None:
    """Where a job of this store owns the output folder: refuse by what makes this command another job."""
    owner = owner_of(settings.output, settings.objects)
    found = store.find_job(owner.job_id) if owner is not None else None
    if found is None or owner_of_job(found) != owner:
        return
    changed = found.fingerprint.told_differences(fingerprint)
    if changed:
        where = store_option(settings.store_url)
        raise ConfigError(
            f"{settings.output}: the folder belongs to job {found.job_id}, and this command is another job: "
            f"its {changed} changed. `dray resume {found.job_id}{where}` goes on with that job as "
            f"it was begun. Name another --output for a new one;{where} --reuse then takes the answers to "
            "rows that are the same (with temperature 0, or a seed). Or replace the files with --overwrite"
        )


def is_output_of(job: Job, folder: str) -> bool:
    """Whether the job's latest run has this output folder, however that is spelled."""
    output = job.settings.get("output")
    return bool(output) and same_place(str(output), folder)


def outputs_of(job: Job) -> list[str]:
    """All output folders that runs of the job have taken."""
    output = job.settings.get("output")
    return list(job.info.get(OUTPUTS) or ([output] if output else []))


def _kept(settings: JobSettings, job: Job | None, weights: Manifest | None) -> dict[str, object]:
    """What the store has of the settings; the recipe is the job's where these have none."""
    recipe = settings.recipe or ({} if job is None else job.settings.get("recipe", {}))
    return describe(settings, weights) | {"recipe": recipe}


def _take_folder(
    store: Store, settings: JobSettings, lease: JobLease, known: Job | None, claimed: Job
) -> str:
    """Mark the output folder as the job's; returns the job's identity.

    ``known`` is the job as it was looked for: the settings of one that got other content are not its earlier
    run's any more. ``claimed`` is the job as it is.
    """
    earlier = [*(outputs_of(known) if known is not None else []), *outputs_of(claimed)]
    outputs = list(dict.fromkeys([*earlier, settings.output]))
    identity: str = claimed.info.get(IDENTITY) or uuid.uuid4().hex
    noted = {OUTPUTS: outputs, IDENTITY: identity}
    if any(claimed.info.get(key) != value for key, value in noted.items()):
        store.merge_job_info(lease, noted)
    owner = Owner(job_id=lease.job_id, identity=identity)
    try:
        if settings.overwrite and owner_of(settings.output, settings.objects) != owner:
            store.merge_job_info(lease, {OF_OTHERS: settings.output})
        take(settings.output, owner, overwrite=settings.overwrite, options=settings.objects)
    except DrayError:
        store.release_job(lease)
        raise
    return identity


def describe(settings: JobSettings, weights: Manifest | None = None) -> dict[str, object]:
    """The settings as people may read them: no URLs with passwords, no prompts."""
    return {
        "input": input_named(settings.source),
        "columns": _columns_of(settings.source),
        "model": settings.model,
        **noted(weights),
        "engine": settings.engine,
        "output": settings.output,
        "format": settings.format,
        "replicas": settings.request.engine.replicas or settings.replicas,
        "engine_arguments": {k: str(v) for k, v in settings.engine_arguments.items()},
        "sampling": {k: str(v)[:80] for k, v in settings.defaults.sampling.items()},
        "model_name": settings.defaults.model_name,
        "skip_invalid": settings.skip_invalid,
    }


def _columns_of(source: Source) -> str | None:
    options = (one.name for one in fields(RowShape) if one.name.endswith("_column"))
    columns = {option: getattr(source.shape, option) for option in options}
    given = [f"{option}={column}" for option, column in columns.items() if column is not None]
    given += [f"keep_columns={column}" for column in source.shape.keep_columns]
    return ", ".join(given) or None
