"""A job goes on with the model that it began with, whatever commits a hub's repository gets meanwhile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dray.cli.facts import facts_of
from dray.cli.preflight import preflight
from dray.cli.wording import status_lines
from dray.driver.telling.wording import opened_line
from dray.errors import ConfigError, JobChangedError, WeightsError
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options import checks
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.store import JobState, open_store
from dray.weights import Manifest, read_manifest
from dray.weights.source.manifest import ModelFile
from tests.support.publishing import answer
from tests.support.small_web import Web

pytestmark = pytest.mark.unit

HEADER = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
MODEL = {
    "README.md": b"A model.",
    "config.json": b"{}",
    "model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + b"abcd",
}
FIRST, SECOND = "a" * 40, "b" * 40
PLAIN = Manifest(uri="s3://b/m", files=(ModelFile(name="model.safetensors", size=4, etag='"e"'),))
PUBLISHED = replace(PLAIN, files=(replace(PLAIN.files[0], digests=bytes(32)),), chunk_bytes=1 << 20)
ROWS = 10  # that have answers before the repository gets its next commit


class Hub:
    """A hub with one repository, ``org/m``, and all commits that it ever had."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def commit(self, commit: str, **changes: bytes) -> None:
        """A commit on ``main``."""
        files = MODEL | {name.replace("_", "."): data for name, data in changes.items()}
        siblings = [
            {"rfilename": name, "size": len(data), **_digests(name, data)} for name, data in files.items()
        ]
        info = json.dumps({"sha": commit, "siblings": siblings}).encode()
        for revision in ("main", commit):
            self._web.pages[f"/api/models/org/m/revision/{revision}"] = info
        self._web.pages |= {f"/org/m/resolve/{commit}/{name}": data for name, data in files.items()}

    def forget(self, commit: str) -> None:
        """As after a rewrite of the history."""
        del self._web.pages[f"/api/models/org/m/revision/{commit}"]


def _digests(name: str, data: bytes) -> dict[str, object]:
    blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
    lfs = {"lfs": {"sha256": hashlib.sha256(data).hexdigest()}} if name.endswith(".safetensors") else {}
    return {"blobId": blob, **lfs}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    web = Web()
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    made = Hub(web)
    made.commit(FIRST)
    yield made
    web.stop()


@pytest.fixture
def settings(hub: Hub, make_settings: Callable[..., JobSettings]) -> JobSettings:
    return make_settings(engine="vllm", model="hf://org/m", shard_rows=ROWS)


@pytest.fixture
def begun(settings: JobSettings) -> OpenJob:
    """A job that stopped with rows answered, and with others left."""
    return _begin(settings)


def _begin(settings: JobSettings) -> OpenJob:
    job = open_job(settings)
    answer(job, shards=1)
    _release(job)
    return job


def _release(job: OpenJob) -> None:
    with open_store(job.settings.store_url) as store:
        store.release_job(job.lease)


def _resumed(job: OpenJob) -> OpenJob:
    """As ``dray resume`` opens it."""
    return open_job(replace(job.settings, job_id=job.job_id), resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_commit_that_leaves_the_model_alone_leaves_the_job_alone(
    begun: OpenJob, hub: Hub, *, resume: bool
) -> None:
    hub.commit(SECOND, README_md=b"A model, and how to cite it.")
    again = _resumed(begun) if resume else open_job(begun.settings)
    assert (again.job_id, again.resumed, again.skipped) == (begun.job_id, True, ROWS)


def test_the_cache_of_a_node_serves_both_commits(hub: Hub) -> None:
    first = read_manifest("hf://org/m")
    hub.commit(SECOND, README_md=b"another")
    second = read_manifest("hf://org/m")
    assert (first.uri, second.uri) == (f"hf://org/m@{FIRST}", f"hf://org/m@{SECOND}")
    assert first.key == second.key
    hub.commit(SECOND, config_json=b"[]")
    assert first.key != read_manifest("hf://org/m").key


@pytest.mark.parametrize(
    "changed", [{"config_json": b'{"a": 1}'}, {"model_safetensors": MODEL["model.safetensors"][:-1] + b"e"}]
)
def test_a_job_goes_on_at_its_commit_once_the_model_has_changed(
    begun: OpenJob, hub: Hub, changed: dict[str, bytes]
) -> None:
    hub.commit(SECOND, **changed)
    with pytest.raises(
        ConfigError, match=f"`dray resume {begun.job_id}.* goes on with that job as it was begun"
    ):
        open_job(begun.settings)
    again = _resumed(begun)
    assert again.weights is not None
    assert (again.skipped, again.weights.uri) == (ROWS, f"hf://org/m@{FIRST}")
    assert opened_line(again).endswith(f"{ROWS} rows are finished already; model hf://org/m@{FIRST}")
    with open_store(again.settings.store_url) as store:
        lines = status_lines(facts_of(store, store.get_job(again.job_id)), now=store.now())
    assert f"model     hf://org/m@{FIRST}" in lines


def test_a_command_that_is_repeated_for_a_named_job_goes_on_at_its_commit(
    settings: JobSettings, hub: Hub
) -> None:
    """As a supervisor does after the driver's machine was lost."""
    job = _begin(replace(settings, job_id="job"))
    hub.commit(SECOND, config_json=b'{"a": 1}')
    again = open_job(job.settings)
    assert again.weights is not None
    assert (again.skipped, again.weights.uri) == (ROWS, f"hf://org/m@{FIRST}")


def test_one_that_is_over_is_not_taken_for_answers_of_the_changed_model(
    settings: JobSettings, hub: Hub
) -> None:
    job = open_job(replace(settings, job_id="job"))
    answer(job)
    with open_store(settings.store_url) as store:
        store.set_job_state(job.lease, JobState.COMPLETED)
        store.release_job(job.lease)
    hub.commit(SECOND, config_json=b'{"a": 1}')
    with pytest.raises(JobChangedError, match="its model or engine"):
        open_job(job.settings)
    assert open_job(job.settings, resume=True).resumed


def test_one_whose_input_was_never_taken_in_begins_with_the_changed_model(
    settings: JobSettings, hub: Hub
) -> None:
    job = open_job(replace(settings, job_id="job"))
    _release(job)
    hub.commit(SECOND, config_json=b'{"a": 1}')
    again = _resumed(job)
    assert again.weights is not None
    assert (again.resumed, again.weights.uri) == (False, f"hf://org/m@{SECOND}")


def test_a_resume_is_not_refused_for_what_the_branch_holds_since(
    begun: OpenJob, hub: Hub, job_input: Path
) -> None:
    """An owner uploads a large model in several commits."""
    hub.commit(SECOND, model_safetensors=b"not yet")
    request = JobRequest.of(
        str(job_input),
        "hf://org/m",
        begun.settings.output,
        store=begun.settings.store_url,
        job_id=begun.job_id,
    )
    with pytest.raises(WeightsError, match="hf://org/m@bbb"):
        preflight(request)
    preflight(request.model_copy(update={"resume": True}))


def test_a_commit_that_is_gone_is_not_needed_for_the_same_model(begun: OpenJob, hub: Hub) -> None:
    hub.commit(SECOND)
    hub.forget(FIRST)
    again = _resumed(begun)
    assert again.weights is not None
    assert (again.skipped, again.weights.uri) == (ROWS, f"hf://org/m@{SECOND}")


def test_a_job_that_an_earlier_dray_began_is_found(
    settings: JobSettings, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fingerprint holds the commit, and its settings none."""
    with _earlier(monkeypatch):
        old = _begin(settings)
    again = open_job(settings)
    assert (again.job_id, again.skipped) == (old.job_id, ROWS)
    _release(again)
    hub.commit(SECOND, README_md=b"")
    assert _resumed(old).skipped == ROWS, "the run before this noted the commit"


def test_so_is_one_with_a_published_model(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "checked_weights", lambda *a, **k: PUBLISHED)
    with _earlier(monkeypatch):
        old = _begin(make_settings(engine="vllm", model="s3://b/m", shard_rows=ROWS))
    assert open_job(old.settings).job_id == old.job_id


@contextmanager
def _earlier(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as earlier:
        earlier.setattr(Manifest, "content", Manifest.former_content)
        earlier.setattr("dray.job.beginning.opening.noted", lambda weights: {})
        yield


@pytest.mark.parametrize("states", [(PLAIN, PUBLISHED), (PUBLISHED, PLAIN)])
def test_a_model_that_is_published_meanwhile_is_the_same(
    states: tuple[Manifest, Manifest],
    make_settings: Callable[..., JobSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or whose ``dray-manifest.json`` was deleted."""
    found = iter(states)
    monkeypatch.setattr(checks, "checked_weights", lambda *a, **k: next(found))
    begun = _begin(make_settings(engine="vllm", model="s3://b/m", shard_rows=ROWS))
    assert open_job(begun.settings).skipped == ROWS
    changed = replace(PLAIN, files=(replace(PLAIN.files[0], etag='"other"'),))
    assert changed.content != PLAIN.content == PUBLISHED.content
