"""What vLLM says of rows reaches the driver: once, and without their words."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.support.engines import Runner, generation_spec, running

pytestmark = pytest.mark.integration

CANARY = "kanari"
QUOTES = (
    "{% for one in messages %}{% if one.role != 'user' %}{{ raise_exception('Unknown role: ' + one.role) }}"
    "{% endif %}{{ one.content }}{% endfor %}"
)


def test_a_warning_of_rows_comes_once_and_a_refusal_quotes_none(
    lively_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chat = {"max_tokens": 2, "temperature": 0.001}
    with running(generation_spec(lively_model, chat_template=QUOTES)) as runner:
        _read(runner)
        outcomes = runner.run(
            [{**chat, "messages": [{"role": "user", "content": "hello"}]}] * 5
            + [{**chat, "messages": [{"role": f"{CANARY}{n}", "content": "hello"}]} for n in range(5)]
        )
        said = _read(runner)
    assert [one.error_code is None for one in outcomes] == [True] * 5 + [False] * 5, outcomes
    [once] = [text for text in said if "temperature" in text]
    assert once.startswith("temperature 0.001 is less than 0.01, ")
    assert [text for text in said if "rejected" in text] == ["Chat template rejected the request: ..."]
    captured = capfd.readouterr()
    assert CANARY not in json.dumps([said, captured.out, captured.err])


def _read(runner: Runner) -> list[str]:
    return [text for level, _, text in runner.replica.status().log if level >= logging.WARNING]
