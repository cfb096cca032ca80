"""Refuse the obvious before Prefect and Ray take their seconds to start.

The job checks all of this again, with everything that only the flow can resolve (blocks).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dray.cluster.auth import refuse_missing_token
from dray.cluster.listening import refuse_silent
from dray.cluster.member import nodes_joined, stable_hosts
from dray.errors import ConfigError, InputError, JobPausedError, Problem, StoreError
from dray.job.beginning.input_as_begun import input_as_begun
from dray.job.beginning.pinned_model import weights_as_begun
from dray.job.options.checks import check_arguments, check_inputs
from dray.job.options.forms import RowOptions
from dray.job.options.model_files import refuse_typo
from dray.job.options.plan_file import as_planned
from dray.job.options.request import BLOCK, JobRequest
from dray.job.options.resolving import NoBlocks, cluster_settings, store_url
from dray.job.options.settings import JobSettings, Resolved
from dray.job.options.shared_store import refuse_rented_sqlite, refuse_shared_sqlite
from dray.requests.ingest import ingest
from dray.requests.media.placing import media_placer
from dray.requests.pulse import ReadingPulse
from dray.requests.reading.inputs import expand
from dray.requests.reading.queries import check_database
from dray.requests.reading.readers import ReadLimits, files_of, read_rows
from dray.requests.reading.settling import settled
from dray.requests.rejects import SKIP_ADVICE, Reject
from dray.requests.sources import RowDefaults, Source, SqlQuery
from dray.storage import check_writable
from dray.storage.addresses import VARIABLE, without_variable
from dray.storage.file_system import file_system_of, refuse_network
from dray.storage.files import local_path
from dray.storage.objects import is_object
from dray.storage.remote import is_remote
from dray.store import Job, Store, open_store

_SMALL_BYTES = 2 << 20  # of input: a few thousand rows, which take a tenth of a second
_SPOOL_BYTES = 32 << 20  # of requests: compressed files and long templates make GB of a small input
_LOOK_ROWS = 16  # between looks at what the requests come to
_ROWS_SECONDS = 0.2  # of reading rows where nothing is wrong with them
_MORE_SECONDS = 3.0  # where something is: the more is named, the fewer runs it takes
_PATIENCE = 3.0  # seconds for a store that does not answer: the job itself is more patient


def preflight(request: JobRequest) -> None:
    """Look at what the request names.

    Raises:
        ConfigError, InputError, StoreUnreachableError: it cannot be used.
        JobChangedError: its plan was made for something else.
    """
    places = _places(request)
    if request.plan is not None and not request.model.startswith(BLOCK) and not _of_block(request, places):
        request = as_planned(request, places)
    settings = JobSettings.of(request, places)
    _check_engine(request, settings)
    _check_cluster(request, settings)
    _check_input(request, settings)
    _check_output(request)
    _check_store(request)


def _places(request: JobRequest) -> Resolved:
    """Where the names lead without Prefect: a variable that is not set is reported by the flow."""
    inputs = [request.input] if isinstance(request.input, str) else request.input
    if request.plan is not None:
        inputs = [without_variable(one) for one in inputs]
    return Resolved(inputs=inputs, model=request.model, store_url="")


def _of_block(request: JobRequest, places: Resolved) -> bool:
    """Whether a plan is compared with objects that only a block of Prefect's has the keys for."""
    inputs = [places.inputs] if isinstance(places.inputs, str) else places.inputs
    return request.objects is not None and any(map(is_object, [*inputs, request.model]))


def _check_engine(request: JobRequest, settings: JobSettings) -> None:
    check_arguments(settings, local=request.cluster == "local")
    if settings.engine == "simulated" and not request.resume:  # a word was made a path where the job began
        refuse_typo(request.model)
    of_block = request.objects is not None and is_object(request.model)
    if not of_block and not request.model.startswith(BLOCK):
        weights_as_begun(_with_store(request, settings), resume=request.resume)


def _check_cluster(request: JobRequest, settings: JobSettings) -> None:
    if request.cluster.startswith(BLOCK):
        return
    where = cluster_settings(request.cluster, NoBlocks()).for_engine(settings.engine_arguments)
    if where.local or _needs_no_cluster(request):
        return
    store = _store_url(request)
    if where.address is None:
        if store is not None:
            refuse_rented_sqlite(store, where)
        return
    refuse_missing_token(where.address)
    refuse_silent(where.address)
    nodes = nodes_joined(where.address)
    if nodes and store is not None:
        refuse_shared_sqlite(store, stable_hosts(nodes))


def _store_url(request: JobRequest) -> str | None:
    """Where the job's store is to be; None where only Prefect knows it."""
    if request.store is None:
        return store_url(None, request.output, NoBlocks(), cluster=request.cluster)
    return _readable_store(request)


def _needs_no_cluster(request: JobRequest) -> bool:
    """Whether a resume only writes files and error rows, as its job has no row left for an engine.

    A store that cannot be read says nothing: it may be one that this command is to make or to upgrade.
    """
    job_id, store = request.job_id, _readable_store(request) if request.resume else None
    if job_id is None or store is None:
        return False
    try:
        with open_store(store, create=False, patience=_PATIENCE) as opened:
            return (job := opened.find_job(job_id)) is not None and _is_answered(opened, job)
    except StoreError:
        return False


def _readable_store(request: JobRequest) -> str | None:
    """The store's URL, where the request names one that is no block."""
    store = request.store
    return None if store is None or store.startswith(BLOCK) else without_variable(store)


def _with_store(request: JobRequest, settings: JobSettings) -> JobSettings:
    """The settings, with the store that a resume looks into."""
    return replace(settings, store_url=(_readable_store(request) if request.resume else None) or "")


def _is_answered(store: Store, job: Job) -> bool:
    if job.state.answered or store.stop_signals(job.job_id).expired:
        return True
    return job.total is not None and not store.shards(job.job_id, open_only=True)


def _check_input(request: JobRequest, settings: JobSettings) -> None:
    source, rows = settings.source, settings.defaults
    if isinstance(source, SqlQuery):
        with suppress(ConfigError):  # a variable that is not set: the flow reports it
            source = replace(source, url=without_variable(source.url))
        if not source.url.startswith(VARIABLE):
            check_database(source)
        return
    inputs = list(source.inputs)
    media_placer(settings.media_roots)
    if request.objects is None or not is_object(request.output):
        check_inputs(settings)
    if input_as_begun(_with_store(request, settings)) is not None:
        return
    if request.objects is None or not any(map(is_object, inputs)):
        expand(inputs)
        found, _ = settled(source)
        if not any(map(is_remote, inputs)):
            _check_rows(found, RowDefaults(model_name=rows.model_name, adapters=rows.adapters), request.rows)
    elif local := [item for item in inputs if not is_object(item)]:
        expand(local)


class _EnoughError(Exception):
    """A small input makes large requests: its first rows are to do."""


class _Bounded(ReadingPulse):
    """Ends a pass over an input that takes too long, or fills the ``folder`` with its requests."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._rows = 0
        self._until = time.monotonic() + _MORE_SECONDS

    def row(self) -> None:
        """A row is there; _EnoughError where it is one too many."""
        super().row()
        self._rows += 1
        if self._rows % _LOOK_ROWS == 0 and (
            self._written() > _SPOOL_BYTES or time.monotonic() > self._until
        ):
            raise _EnoughError

    def _written(self) -> int:
        return sum(file.stat().st_size for file in Path(self._folder).iterdir())


def _check_rows(source: Source, defaults: RowDefaults, rows: RowOptions) -> None:
    """Take a small input in as ingest does, only to judge it; of a big one look at the first rows.

    The seconds that Ray and Prefect take to start come after this.

    Raises:
        InputError: the files cannot be read, or rows cannot be requests.
    """
    if sum(Path(local_path(file.uri)).stat().st_size for file in files_of(source)) <= _SMALL_BYTES:
        # The job itself may need no room in TMPDIR, so a TMPDIR that is full refuses nothing here.
        with suppress(_EnoughError, JobPausedError), TemporaryDirectory(prefix="dray-preflight-") as folder:
            ingest(
                source,
                spool_uri=f"{folder}/requests.jsonl",
                defaults=defaults,
                skip_invalid=rows.skip_invalid,
                pulse=_Bounded(folder),
            )
            return
    _check_first_rows(source, rows.skip_invalid)


def _check_first_rows(source: Source, skip_invalid: bool) -> None:
    """Read files as ingest will, for a moment: most problems are in the first rows. Tells up to 20 of them.

    Raises:
        InputError: the files cannot be read, or rows cannot be requests.
    """
    limits, files = ReadLimits(), files_of(source)
    names = [file.uri for file in files]
    began = time.monotonic()
    problems: list[Problem] = []
    for index, row in enumerate(read_rows(source, files, RowDefaults(), limits)):
        if row.bad is not None and not skip_invalid:
            reject = Reject.of(row.bad, index=index, file_no=row.file_no, line_no=row.line_no)
            problems.append(reject.problem(names))
        seconds = time.monotonic() - began
        if len(problems) == limits.problems or seconds > (_MORE_SECONDS if problems else _ROWS_SECONDS):
            break
    if problems:
        raise InputError(problems, advice=SKIP_ADVICE)


def _check_output(request: JobRequest) -> None:
    if request.objects is None or not is_object(request.output):
        check_writable(request.output)


def _check_store(request: JobRequest) -> None:
    store = request.store
    if store is None:
        store_url(None, request.output, NoBlocks(), cluster=request.cluster)  # an object store cannot hold it
        file = Path(request.output) / "dray.db"  # the default; an output is often on a network's disk
        refuse_network(file, file_system_of(file))
        return
    if store.startswith(BLOCK):
        return
    open_store(without_variable(store), patience=_PATIENCE).close()
