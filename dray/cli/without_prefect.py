"""A run of the command line by itself: the same driver, store and files, on plain Ray tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from dray.cli.output import RUN_LOGGER, RunLog
from dray.cli.prestarted import prestarted_cluster
from dray.cli.results import stored_result, unforeseen
from dray.errors import CancelledError, DrayError, StoreError
from dray.imports import lasting_imports
from dray.job import current_job
from dray.job.options.request import JobRequest


def run_plain(request: JobRequest) -> dict[str, Any]:
    """The job's result, of a run without Prefect in this process.

    Raises:
        DrayError: the job did not come to its end.
    """
    with _lines() as logger, prestarted_cluster(request.cluster):
        try:
            return _run(request, logger)
        except CancelledError:
            if current_job.latest() is None:  # cancelled before: repeating its command does not revive it
                raise
            return stored_result()
        except DrayError:
            _say_what_is_kept(logger)
            raise
        except Exception as error:
            _say_what_is_kept(logger)
            raise unforeseen(error) from error


@contextmanager
def _lines() -> Iterator[logging.Logger]:
    """The run's lines, for the terminal."""
    logger, handler = logging.getLogger(RUN_LOGGER), RunLog()
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _run(request: JobRequest, logger: logging.Logger) -> dict[str, Any]:
    with lasting_imports():
        from dray.cluster import open_cluster
        from dray.cluster.forwarded_env import handed_down
        from dray.driver.ray_executor import RayExecutor
        from dray.driver.resting import put_to_rest
        from dray.driver.telling.observers import ListenersObserver, LogObserver
        from dray.driver.whole_job import Parts, run_job
        from dray.job.options.checks import check_arguments
        from dray.job.options.resolving import NoBlocks, cluster_settings, job_settings
        from dray.job.watched import start_in_thread, wait_watching
    settings = job_settings(request, NoBlocks())
    where = cluster_settings(request.cluster, NoBlocks())
    check_arguments(settings, local=where.local)
    environment = handed_down() if not where.local else {}
    where = where.for_engine(settings.engine_arguments)
    cluster = open_cluster(replace(where, environment=environment))
    parts = Parts(
        where=where,
        cluster=cluster,
        executor_of=lambda _: RayExecutor(),
        observers=[LogObserver(logger), ListenersObserver()],
    )
    work = start_in_thread(lambda: run_job(settings, parts, resume=request.resume))
    try:
        return wait_watching(work, cluster.check).as_dict()
    except DrayError as error:
        job = current_job.latest()
        if job is not None and not work.done():  # the cluster is lost, and the driver may hang in it
            put_to_rest(job, error, release=True)
        raise
    finally:
        cluster.leave()


def _say_what_is_kept(logger: logging.Logger) -> None:
    """How far the job came, where there is one, and its store answers."""
    job = current_job.latest()
    if job is None:
        return
    from dray.driver.outage import SHORT_PATIENCE
    from dray.driver.telling.wording import rest_line
    from dray.job.open_job import reopen

    with suppress(StoreError), reopen(job, patience=SHORT_PATIENCE) as store:
        logger.info("%s", rest_line(job.job_id, store.get_job(job.job_id).state, store.counts(job.job_id)))
