"""Parameters above the half MiB that Prefect's server takes of a run: a list of many files, a long text."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from dray.errors import ConfigError, InputError
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tests.support.prefect_server import prefect_server

pytestmark = pytest.mark.integration


def test_the_server_that_dray_starts_takes_a_list_of_many_files(tmp_path: Path) -> None:
    """As a shell makes it of data/*.parquet. Prefect answered with HTTP 422 and all parameters, twice."""
    files = [str(tmp_path / f"part-{number:05}-{'c' * 80}.parquet") for number in range(5_300)]
    with pytest.raises(InputError, match=r"part-00000.*no such file"):
        batch_inference(files, "m", str(tmp_path / "out"), engine=EngineOptions(name="simulated"))


def test_a_server_with_a_limit_refuses_more_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal hangs on Prefect's words: another Prefect may say it in others."""
    files = [str(tmp_path / f"secret-part-{number:05}.parquet") for number in range(1_300)]
    limit = {"PREFECT_SERVER_API_MAX_PARAMETER_SIZE": "1000"}
    with prefect_server(settings=limit) as server, temporary_settings({PREFECT_API_URL: f"{server.url}/api"}):
        monkeypatch.setenv("PREFECT_API_URL", f"{server.url}/api")
        with pytest.raises(ConfigError) as refused:
            batch_inference(files, "m", str(tmp_path / "out"), engine=EngineOptions(name="simulated"))
    told = str(refused.value)
    assert re.match(
        r"Prefect's server takes at most 1,000 bytes of parameters for a run, and these are \d+,", told
    )
    assert "name the input's files by a pattern in quotes" in told
    assert "PREFECT_SERVER_API_MAX_PARAMETER_SIZE=0" in told
    assert "secret-part" not in "".join(traceback.format_exception(refused.value))
