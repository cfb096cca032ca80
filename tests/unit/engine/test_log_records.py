"""What a replica keeps of a log."""

from __future__ import annotations

import logging

import pytest

from dray.engine.log_records import LatestRecords, message_of

pytestmark = pytest.mark.unit


class _Mute:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_a_record_whose_arguments_do_not_fit_ends_nothing() -> None:
    """Python's own handlers do not raise for it: in a step of the engine it would end that."""
    kept = LatestRecords()
    for message, arguments in (("%d rows", ("many",)), (_Mute(), ())):
        kept.emit(logging.LogRecord("vllm", logging.INFO, "a/b.py", 7, message, arguments, None))
    told = "a line of the log whose text cannot be made, at b.py:7"
    assert kept.take() == [(logging.INFO, "vllm", told)] * 2
    assert kept.take() == []


def test_a_record_is_its_text() -> None:
    assert message_of(logging.LogRecord("n", logging.INFO, "p", 1, "%d rows", (3,), None)) == "3 rows"


def test_a_record_quotes_no_answer() -> None:
    """As vLLM's parser for Poolside's models does, of a call that it cannot read."""
    name, told = "vllm.tool_parsers.poolside_v1_tool_parser", "Failed to parse tool call details from: %s"
    record = logging.LogRecord(name, logging.WARNING, "p", 1, told, ("the customer's words",), None)
    assert message_of(record) == told
