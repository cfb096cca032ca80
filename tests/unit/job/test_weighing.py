"""A job goes on with the weights that it began with: every byte of files of this machine counts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dray.errors import CancelledError, JobChangedError
from dray.job.beginning import weighing
from dray.job.beginning.opening import open_job
from dray.job.beginning.weighing import WEIGHTS, Weighing
from dray.job.open_job import OpenJob
from dray.job.options.model_files import model_digest
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.requests.model import Outcome
from dray.store import JobState, Store, open_store
from dray.weights.source import content
from dray.weights.source.content import content_digests
from tasks.failing import note_failure

pytestmark = pytest.mark.unit

FILE = "model.safetensors"
MIDDLE = 500_000  # bytes into the file: neither its header nor its ends


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text('{"model": {}}' if name == "tokenizer.json" else "{}")
    save_file({"a": np.zeros(250_000, np.float32)}, folder / FILE)
    return folder


@pytest.fixture
def job(model: Path, make_settings: Callable[..., JobSettings]) -> OpenJob:
    """A job with its rows taken in, and its weights noted."""
    opened = open_job(make_settings(engine="vllm", model=str(model), job_id="job"))
    ingest_job(opened, replicas=1)
    _weighed(opened)
    return opened


@pytest.fixture
def store(job: OpenJob) -> Iterator[Store]:
    with open_store(job.settings.store_url, create=False) as found:
        yield found


def _weighed(job: OpenJob) -> None:
    with Weighing(job) as found:
        found._done.wait(60)
        found.check()


def _answer(store: Store, job: OpenJob) -> None:
    lease = store.claim_shard(job.lease, 0, owner="worker")
    assert lease is not None
    store.commit(lease, [Outcome(0, "row-0", b"{}")])


def _edit(model: Path) -> None:
    with (model / FILE).open("r+b") as file:
        file.seek(MIDDLE)
        file.write(b"\x01")


def test_an_edit_in_the_middle_is_another_model(job: OpenJob, store: Store, model: Path) -> None:
    before = model_digest(str(model))
    _answer(store, job)
    _weighed(job)
    _edit(model)
    assert model_digest(str(model)) == before  # the fingerprint does not see it
    with pytest.raises(JobChangedError, match=rf"{FILE} in .* changed since .*--job-id") as raised:
        _weighed(job)
    note_failure(job, raised.value)
    found = store.get_job("job")
    assert (found.state, found.driver) == (JobState.PAUSED, None)
    assert FILE in (found.reason or "")


def test_a_job_that_is_done_stays_so(job: OpenJob, store: Store) -> None:
    store.set_job_state(job.lease, JobState.COMPLETED)
    note_failure(job, JobChangedError("other weights"))
    assert store.get_job("job").state is JobState.COMPLETED


def test_a_job_without_answers_takes_the_weights_as_they_are(job: OpenJob, store: Store, model: Path) -> None:
    before = store.get_job("job").info[WEIGHTS]
    _edit(model)
    _weighed(job)
    assert store.get_job("job").info[WEIGHTS] != before


def test_digests_from_before_the_answers_count_for_nothing(
    job: OpenJob, store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver that has the first rows answered dies before it notes the files that it found."""
    _edit(model)
    with monkeypatch.context() as patch:
        patch.setattr(Weighing, "_weigh", lambda _: None)
        Weighing(job).__enter__()
    _answer(store, job)
    _weighed(job)  # the same files: nothing changed


def test_a_job_of_an_earlier_version_is_held_to_nothing(job: OpenJob, store: Store, model: Path) -> None:
    store.merge_job_info(job.lease, {WEIGHTS: None})
    _answer(store, job)
    _edit(model)
    _weighed(job)
    assert store.get_job("job").info[WEIGHTS] == content_digests(model)


def test_weights_of_a_job_that_got_another_model_count_for_nothing(
    model: Path, make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input was refused with the first model; the driver with the other dies before that one is noted."""
    first = open_job(make_settings(engine="vllm", model=str(model), job_id="job"))
    _weighed(first)
    other = model.with_name("other")
    shutil.copytree(model, other)
    save_file({"b": np.ones(250_000, np.float32)}, other / FILE)
    with open_store(first.settings.store_url, create=False) as store:
        store.release_job(first.lease)
        job = open_job(make_settings(engine="vllm", model=str(other), job_id="job"))
        ingest_job(job, replicas=1)
        with monkeypatch.context() as patch:
            patch.setattr(Weighing, "_weigh", lambda _: None)
            Weighing(job).__enter__()
        _answer(store, job)
        store.release_job(job.lease)
    _weighed(open_job(job.settings))  # the same files: nothing changed


def test_a_second_look_reads_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = content_digests(model)
    with monkeypatch.context() as patch:
        patch.setattr(content, "_read", lambda *_: pytest.fail("it is read again"))
        assert content_digests(model) == first
    times = (model / FILE).stat()
    _edit(model)
    os.utime(model / FILE, ns=(times.st_atime_ns, times.st_mtime_ns))  # no tool hides an edit by that
    assert content_digests(model) != first


def test_a_cancel_is_heard_while_they_are_read(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer(store, job)
    monkeypatch.setattr(weighing, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(Weighing, "_weigh", lambda _: None)  # it never ends

    def cancelled() -> None:
        raise CancelledError("cancelled")

    with Weighing(job) as found, pytest.raises(CancelledError):
        found.check(cancelled)


def test_simulated_engines_have_no_weights(job: OpenJob) -> None:
    simulated = replace(job, settings=replace(job.settings, engine="simulated", model="none"))
    with Weighing(simulated) as found:
        found.check()
