"""Commands that read the store: it is the truth, whatever Prefect shows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.cli import output
from dray.cli.block_url import url_of_block
from dray.cli.facts import facts_of
from dray.cli.wording import cancel_line
from dray.cluster.cluster_file import anchored_file
from dray.errors import ConfigError
from dray.job.driverless import cancel_or_ask
from dray.job.options.request import BLOCK
from dray.storage.addresses import without_variable
from dray.storage.default_store import default_store
from dray.storage.layout import PART_BYTES
from dray.store import Job, Store
from dray.store.database.urls import file_url, parse_url
from dray.store.named import file_of, open_existing
from dray.store.store import PATIENCE

if TYPE_CHECKING:
    from dray.storage.objects import ObjectStoreOptions

HIDDEN_INPUT = "DRAY_INPUT_URL"
"""The variable by which ``dray run`` hands on the URL of a database with a password in it."""


def store_at(reference: str | None, *, patience: float = PATIENCE, upgrade: bool = False) -> Store:
    """The store that ``--store`` names: a URL, env:NAME, block:NAME, or a folder with ``dray.db`` in it.

    ``patience`` and ``upgrade`` are as in :func:`open_store`: a command that writes upgrades.

    Raises:
        ConfigError: there is no store of that name.
    """
    return open_existing(_address(_named(reference)), upgrade=upgrade, patience=patience)


def _named(reference: str | None) -> str:
    return reference or default_store() or "."


def _address(named: str) -> str:
    """What is named, with the value of a block or a variable in its place."""
    return url_of_block(named.removeprefix(BLOCK)) if named.startswith(BLOCK) else without_variable(named)


def objects_named(objects: str | None) -> ObjectStoreOptions | None:
    """What Prefect's block of that name holds; None for what the environment says."""
    if objects is None:
        return None
    from dray.cli.with_prefect import prefect_blocks
    from dray.job.options.resolving import objects_of

    with prefect_blocks() as blocks:
        return objects_of(objects, blocks)


def recipe_of(job_id: str, reference: str | None) -> dict[str, Any]:
    """The flow parameters of a job's last run, for another run in the store that ``reference`` names.

    Since then, the job's folder may have been moved: then its files come to where it lies now.
    """
    with store_at(reference, upgrade=True) as store:  # as the run that follows would
        job = store.get_job(job_id)
    recipe = job.settings.get("recipe")
    if not recipe:
        raise ConfigError(f"job {job_id} was not started by the flow; run its own program again")
    if recipe["input"] is None or _is_gone(recipe["input"]):
        raise ConfigError(f"job {job_id} reads a database whose URL is not kept; run its own command again")
    named = _named(reference)
    address = _address(named)
    if "://" not in address:
        named = address = file_url(str(file_of(address)))  # a URL stays as named: a variable may hide a login
    return {**recipe, **_moved_folder(job, address), "store": named, "job_id": job_id}


def _moved_folder(job: Job, store: str) -> dict[str, str]:
    """The folder of the store's file as the output, where its marker says that it is the job's own."""
    from dray.job.beginning.opening import owner_of_job
    from dray.storage import folders

    url = parse_url(store)
    if url.get_backend_name() != "sqlite" or not url.database:
        return {}
    folder = str(Path(url.database).parent)
    return {"output": folder} if folders.owner_of(folder) == owner_of_job(job) else {}


def with_changes(
    recipe: Mapping[str, Any],
    *,
    replicas: str | None,
    deadline: str | None,
    budget: float | None,
    price: float | None,
    cluster: str | None,
) -> dict[str, Any]:
    """A recipe with what a resume may change; None leaves it as in the job's last run."""
    where = None if cluster is None else anchored_file(cluster)
    changes = {"deadline": deadline, "budget": budget, "price": price, "cluster": where}
    found = {**recipe, **{name: value for name, value in changes.items() if value is not None}}
    if replicas is not None:
        found["engine"] = {**recipe.get("engine", {}), "replicas": replicas}
    return found


def _is_gone(source: Any) -> bool:
    """Whether it is a database whose URL ``dray run`` hid in its own environment."""
    return source == f"env:{HIDDEN_INPUT}" and not os.environ.get(HIDDEN_INPUT)


def cancel_job(job_id: str, reference: str | None, *, json: bool) -> int:
    """Ask the job's driver and shard holders to stop; a job without a driver is cancelled at once."""
    with store_at(reference, upgrade=True) as store:
        store.get_job(job_id)
        cancel_or_ask(store, job_id)
        facts = facts_of(store, store.get_job(job_id))
    if json:
        output.print_json(facts)
    else:
        output.say(cancel_line(facts, reference))
    return 0


def export_job(
    job_id: str,
    directory: str,
    form: Any,
    reference: str | None,
    *,
    part_bytes: int = PART_BYTES,
    overwrite: bool = False,
    kept: bool = True,
    objects: str | None = None,
    json: bool,
) -> int:
    """Write finished rows to files of ``part_bytes`` at most, in a folder that is no job's own.

    ``objects`` names the block with the keys to object stores, for what the job kept and for the folder.

    Raises:
        ConfigError: the folder holds files of others, and may not be given to the export.
    """
    from dray.job.ending.exporting import export

    options = objects_named(objects)
    with store_at(reference) as store:
        job = store.get_job(job_id)
        written = export(
            store,
            job,
            directory,
            form,
            kept=kept,
            part_bytes=part_bytes,
            overwrite=overwrite,
            options=options,
        )
    files = {
        name: {"uri": info.uri, "size": info.size, "sha256": info.sha256}
        for name, info in written.files.items()
    }
    if json:
        output.print_json({"job_id": job_id, "files": files})
    else:
        for facts in files.values():
            output.tell(str(facts["uri"]))
    return 0


def export_failed(
    job_id: str,
    path: str,
    reference: str | None,
    *,
    codes: Sequence[str],
    overwrite: bool,
    objects: str | None = None,
    json: bool,
) -> int:
    """Write the requests of error rows to a batch file that `dray run` answers; ``objects`` as above."""
    from dray.job.ending.failed_requests import write_failed
    from dray.requests.media.medium import MEDIA
    from dray.wording import plural

    if not path.endswith(".jsonl"):
        raise ConfigError(
            f"--failed-requests {path}: name a file that ends in .jsonl, as `dray run` reads it"
        )
    options = objects_named(objects)
    with store_at(reference) as store:
        job = store.get_job(job_id)
        found = write_failed(store, job, path, codes=codes, overwrite=overwrite, options=options)
    if json:
        file = path if found.rows else None
        output.print_json({"job_id": job_id, "file": file, **asdict(found)})
        return 0
    if found.others:
        output.say(f"{plural(found.others, 'error row')} left out, of other codes")
    if found.unread:
        output.say(f"{plural(found.unread, 'error row')} left out, which dray could not read as requests")
    if not found.rows:
        output.say(f"job {job_id} has no other error row: nothing was written")
        return 0
    rows = (job.settings.get("recipe") or {}).get("rows") or {}
    roots = "".join(
        f" --{medium.root.replace('_', '-')} {shlex.quote(rows[medium.root])}"
        for medium in MEDIA
        if rows.get(medium.root)
    )
    output.tell(f"{path}: {plural(found.rows, 'request')}")
    output.say(f"`dray run {shlex.quote(path)} --model MODEL --output ANOTHER_FOLDER{roots}` answers them")
    return 0


def rewrite_report(job_id: str, path: str | None, reference: str | None, *, json: bool) -> int:
    """Render a kept report again, and say what the job cost.

    Without a ``path`` it comes to the job's own output folder; where that is gone, or in an object store, to
    ``JOB.report.html`` here.
    """
    from dray.report import ReportData, render_html
    from dray.report.billing import bill_lines
    from dray.storage.files import write_atomic

    with store_at(reference) as store:
        job = store.get_job(job_id)
        kept = job.summary.get("report")
    if not kept:
        raise ConfigError(f"job {job_id} has no report yet: it is made when the job ends")
    path = _report_of(job) if path is None else path
    _refuse_folder_of_others(job, path)
    data = ReportData.from_json(kept)
    with write_atomic(path) as file:
        file.write(render_html(data).encode())
    if json:
        cost = data.account.as_dict() if data.account else None
        output.print_json({"job_id": job_id, "report": path, "cost": cost})
    else:
        output.tell(path)
        for line in bill_lines(data.account) if data.account else ():
            output.tell(line)
    return 0


def _report_of(job: Job) -> str:
    from dray.job.beginning.opening import owner_of_job
    from dray.storage import folders
    from dray.storage.absolute_paths import absolute
    from dray.storage.files import join, local_path
    from dray.storage.layout import REPORT
    from dray.storage.objects import is_object

    folder = str(job.settings.get("output") or "")
    here = folder and not is_object(folder) and os.access(local_path(folder), os.W_OK)
    if here and folders.owner_of(folder) == owner_of_job(job):
        return join(folder, REPORT)
    return absolute(f"{job.job_id}.report.html")


def _refuse_folder_of_others(job: Job, path: str) -> None:
    from dray.job.beginning.opening import owner_of_job
    from dray.storage import folders

    folder = path.rpartition("/")[0]
    owner = folders.owner_of(folder) if folder else None
    if owner is not None and owner not in (owner_of_job(job), owner_of_job(job).of_export):
        raise ConfigError(f"{folder}: the folder belongs to {owner}; name a file elsewhere with --output")
