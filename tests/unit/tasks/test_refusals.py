"""A refusal is one record of Prefect's without a traceback; other errors keep theirs."""

from __future__ import annotations

import logging

import pytest

from dray.errors import DrayError, InputError, JobFailedError, Problem
from tasks.refusals import log_refusals_briefly

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["prefect.flow_runs", "prefect.task_runs"])
@pytest.mark.parametrize(
    ("error", "told", "traced"),
    [
        (
            InputError([Problem("invalid_json", "not JSON", "in.jsonl", 3)]),
            "InputError: in.jsonl:3",
            False,
        ),
        (JobFailedError("the disk is broken"), "it failed: ", True),
    ],
)
def test_refusals_have_no_traceback(name: str, error: DrayError, told: str, traced: bool) -> None:
    log_refusals_briefly()
    log_refusals_briefly()
    records: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, logger = Kept(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        raise error
    except DrayError as raised:
        logger.exception("it failed: %r", raised)
    finally:
        logger.removeHandler(handler)
    [record] = records
    assert record.getMessage().startswith(told)
    assert (record.exc_info is not None) == traced
    assert sum(callable(one) and getattr(one, "__name__", "") == "_shorten" for one in logger.filters) == 1
