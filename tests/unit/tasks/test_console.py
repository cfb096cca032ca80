"""What Prefect logs to a pipe that has no reader any more ends no job."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest
from prefect.logging.handlers import PrefectConsoleHandler

from tasks.console import outlive_readers

pytestmark = pytest.mark.unit


@pytest.fixture
def broken() -> Iterator[TextIO]:
    """A stream into a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


def test_a_log_without_a_reader_goes_nowhere(broken: TextIO) -> None:
    logger = logging.getLogger("test.console")
    handler = PrefectConsoleHandler(broken)
    logger.addHandler(handler)
    try:
        outlive_readers()
        logger.error("the first line")
        logger.error("the second line")
    finally:
        logger.removeHandler(handler)
    broken.write("as a library does\n")
    broken.flush()
