"""What a replica keeps of a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from io import StringIO

import pytest

from dray.engine.log_records import LatestRecords, keep_log, keep_on, message_of

pytestmark = pytest.mark.unit


class _Mute:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_a_record_whose_arguments_do_not_fit_ends_nothing() -> None:
    """Python's own handlers do not raise for it: in a step of the engine it would end that."""
    kept = LatestRecords()
    for message, arguments in (("%d rows", ("many",)), (_Mute(), ())):
        kept.emit(logging.LogRecord("dray", logging.INFO, "a/b.py", 7, message, arguments, None))
    told = "a line of the log whose text cannot be made, at b.py:7"
    assert kept.take() == [(logging.INFO, "dray", told)] * 2
    assert kept.take() == []


def test_a_record_is_its_text() -> None:
    assert message_of(logging.LogRecord("n", logging.INFO, "p", 1, "%d rows", (3,), None)) == "3 rows"


def test_a_record_quotes_no_answer() -> None:
    """As vLLM's parser for Poolside's models does, of a call that it cannot read."""
    name, told = "vllm.tool_parsers.poolside_v1_tool_parser", "Failed to parse tool call details from: %s"
    record = logging.LogRecord(name, logging.WARNING, "p", 1, told, ("the customer's words",), None)
    assert message_of(record) == "Failed to parse tool call details from: ..."


def _of_vllm(name: str, message: str, *arguments: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord(f"vllm.{name}", level, "p", 1, message, arguments, None)


QUOTING = [
    (
        _of_vllm("renderers.hf", "Chat template rejected the request: %s", "Unknown role: kanari"),
        "Chat template rejected the request: ...",
    ),
    (
        _of_vllm("renderers.chat_utils", "Tool call %r has arguments (%d chars)", "kanari", 7),
        "Tool call '...' has arguments (7 chars)",
    ),
    (
        _of_vllm("tokenizers.mistral", "Truncating tool call ID: %s to %s", "kanari", "k"),
        "Truncating tool call ID: ... to ...",
    ),
    (_of_vllm("entrypoints.utils", "%d of them", "kanari"), "%d of them"),
    (_of_vllm("sampling_params", "temperature %s is less", 0.001), "temperature 0.001 is less"),
]


@pytest.mark.parametrize(("record", "told"), QUOTING)
def test_a_record_quotes_no_row(record: logging.LogRecord, told: str) -> None:
    kept = LatestRecords()
    kept.rows_come()
    kept.emit(record)
    assert [text for _, _, text in kept.take()] == [told]


def test_what_vllm_says_of_its_own_start_stays_whole() -> None:
    kept = LatestRecords()
    kept.emit(_of_vllm("renderers.hf", "Detected the format of the chat template to be '%s'", "openai"))
    assert [text for _, _, text in kept.take()] == ["Detected the format of the chat template to be 'openai'"]


def test_a_warning_of_each_row_is_said_once_and_counted() -> None:
    """vLLM says it whenever a row comes with such a temperature."""
    kept = LatestRecords()
    kept.rows_come()
    for number in range(1200):
        kept.emit(_of_vllm("sampling_params", "temperature %s is less than %s", number / 1e6, 0.01))
        kept.emit(_of_vllm("v1.engine.core", "%s", f"step {number % 2}"))
    said = [text for _, name, text in kept.take() if name == "vllm.sampling_params"]
    assert said == [
        "temperature 0.0 is less than 0.01",
        "temperature 9e-06 is less than 0.01 (10 times by now)",
        "temperature 9.9e-05 is less than 0.01 (100 times by now)",
        "temperature 0.000999 is less than 0.01 (1,000 times by now)",
    ]


def test_what_is_said_of_different_things_is_kept() -> None:
    kept = LatestRecords()
    for layer in range(3):
        kept.emit(_of_vllm("v1.worker", f"card {layer} is hot"))
        kept.emit(_of_vllm("v1.engine.core", "%s", f"from the core: {layer}"))
        kept.emit(logging.LogRecord("dray.engine", logging.WARNING, "p", 1, "again", (), None))
    assert len(kept.take()) == 9


def test_what_vllm_tells_on_its_way_stays_on_the_node() -> None:
    """It tells thirty lines at each start."""
    kept, shown = LatestRecords(), StringIO()
    kept.onward = [logging.StreamHandler(shown)]
    for name, level in (("v1.engine.core", logging.INFO), ("v1.engine.llm_engine", logging.WARNING)):
        kept.emit(_of_vllm(name, "layer %d took %.1f s", 7, 0.5, level=level))
    assert kept.take() == []
    assert shown.getvalue() == "layer 7 took 0.5 s\n" * 2


def test_vllms_own_log_takes_no_record_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM sets up its log while the engine is built: its handlers alone had the records from then on."""
    vllm, ours, shown = logging.getLogger("vllm"), logging.getLogger("dray"), StringIO()
    monkeypatch.setattr(vllm, "handlers", [])
    monkeypatch.setattr(ours, "handlers", [])
    kept = keep_log()
    vllm.handlers = [logging.StreamHandler(shown)]
    for _ in range(2):  # a process may build engine after engine
        keep_on()
        assert vllm.handlers == [kept]
    kept.rows_come()
    for _ in range(3):
        logging.getLogger("vllm.renderers.hf").warning("rejected: %s", "kanari")
    assert [text for _, _, text in kept.take()] == ["rejected: ..."]
    assert shown.getvalue() == "rejected: ...\n"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LatestRecords, StringIO]]:
    """What is kept for the driver, and what vLLM's own handler shows, at vLLM's level DEBUG."""
    vllm, stream = logging.getLogger("vllm"), StringIO()
    for name in ("vllm", "dray"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    level = vllm.level
    kept = keep_log()
    vllm.handlers = [logging.StreamHandler(stream)]
    vllm.setLevel(logging.DEBUG)  # VLLM_LOGGING_LEVEL
    keep_on()
    yield kept, stream
    vllm.setLevel(level)


def test_the_node_has_what_vllm_says_for_those_who_look_for_errors(
    shown: tuple[LatestRecords, StringIO],
) -> None:
    """VLLM_LOGGING_LEVEL=DEBUG is vLLM's first advice."""
    kept, stream = shown
    for _ in range(3):
        logging.getLogger("vllm.v1.worker").debug("%d blocks", 7)
    assert kept.take() == []
    assert stream.getvalue() == "7 blocks\n" * 3


def test_a_long_line_is_cut_for_the_driver_alone(shown: tuple[LatestRecords, StringIO]) -> None:
    """vLLM's line of its configuration is one."""
    kept, stream = shown
    for _ in range(10):
        logging.getLogger("vllm.v1.engine").warning("x" * 5000)
    assert [text for _, _, text in kept.take()] == ["x" * 2000, "x" * 2000 + " (10 times by now)"]
    assert stream.getvalue().split("\n") == ["x" * 5000, "x" * 5000 + " (10 times by now)", ""]


@pytest.mark.parametrize("name", ["entrypoints.openai", "reasoning.qwen3"])
def test_a_traceback_quotes_no_row(name: str, shown: tuple[LatestRecords, StringIO]) -> None:
    kept, stream = shown
    kept.rows_come()
    words = "kanari"
    try:
        raise ValueError(words)
    except ValueError:
        logging.getLogger(f"vllm.{name}").exception("Error in preprocessing")
        logging.getLogger("vllm.v1.worker").exception("Error in a step")
    first, second = stream.getvalue().split("Error in a step")
    assert words not in first
    assert "test_log_records.py" in first
    assert first.endswith("ValueError\n")
    assert "ValueError: kanari" in second  # says what broke, not what came
