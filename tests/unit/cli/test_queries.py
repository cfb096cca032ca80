"""Queries at the command line: one database, and its URL is nobody's to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.cli import jobs, running
from dray.cli.app import run_app
from dray.errors import ConfigError
from dray.job.options.request import JobRequest
from dray.store import Fingerprint, open_store

pytestmark = pytest.mark.unit


def test_a_query_of_several_inputs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "run_job", lambda *_, **__: pytest.fail("it was run"))
    inputs = [f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"]
    options = ["--query", "select 1 as a", "--prompt-column", "a", "--model", "m", "--output", str(tmp_path)]
    assert run_app(["run", *inputs, *options]) == 2
    assert "--query reads one database" in capsys.readouterr().err


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    print_of = Fingerprint(input="i", model="m", sampling="s", template="t", format="1")
    recipe: dict[str, Any] = {"input": f"env:{jobs.HIDDEN_INPUT}", "rows": {"query": "select 1"}}
    with open_store(url) as store:
        store.create_job("job", fingerprint=print_of, settings={"recipe": recipe})
    return url


def test_resuming_a_query_whose_url_was_hidden_says_what_to_do(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(jobs.HIDDEN_INPUT, raising=False)
    with pytest.raises(ConfigError, match="run its own command again"):
        jobs.recipe_of("job", store_url)
    monkeypatch.setenv(jobs.HIDDEN_INPUT, "postgresql://me:secret@host/db")
    assert jobs.recipe_of("job", store_url)["input"] == f"env:{jobs.HIDDEN_INPUT}"


def test_the_variable_is_the_one_that_run_hides_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jobs.HIDDEN_INPUT, "")
    request = JobRequest.of("postgresql://me:secret@host/db", "m", "out", rows={"query": "select 1"})
    assert running._without_logins(request).input == f"env:{jobs.HIDDEN_INPUT}"
