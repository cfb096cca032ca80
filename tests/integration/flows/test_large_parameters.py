"""Parameters above the half MiB that Prefect's server takes of a run: a list of many files, a long text."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.errors import InputError
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions

pytestmark = pytest.mark.integration


def test_the_server_that_dray_starts_takes_a_list_of_many_files(tmp_path: Path) -> None:
    """As a shell makes it of data/*.parquet. Prefect answered with HTTP 422 and all parameters, twice."""
    files = [str(tmp_path / f"part-{number:05}-{'c' * 80}.parquet") for number in range(5_300)]
    with pytest.raises(InputError, match=r"part-00000.*no such file"):
        batch_inference(files, "m", str(tmp_path / "out"), engine=EngineOptions(name="simulated"))
