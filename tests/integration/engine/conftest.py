"""One generation engine and one embedding engine for all tests of this folder: starts are what costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import Runner, embedding_spec, generation_spec, running, write_lively_model
from tests.support.shared_gpu import share_the_gpu


@pytest.fixture(scope="session")
def quiet_vllm() -> Iterator[None]:
    """One unbound thread: other work on the machine then slows a test down, and no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
        share_the_gpu(patch)
        yield


@pytest.fixture(scope="session")
def lively_model(tmp_path_factory: pytest.TempPathFactory, quiet_vllm: None) -> Path:
    return write_lively_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def generation(lively_model: Path) -> Iterator[Runner]:
    with running(generation_spec(lively_model)) as runner:
        yield runner


@pytest.fixture(scope="session")
def embedding(lively_model: Path) -> Iterator[Runner]:
    with running(embedding_spec(lively_model)) as runner:
        yield runner
