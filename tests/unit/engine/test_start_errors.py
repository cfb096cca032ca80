"""What an engine that did not start says."""

from __future__ import annotations

import pytest

from dray.engine.start_errors import start_error
from dray.errors import ConfigError, EngineStartError

pytestmark = pytest.mark.unit


def test_an_error_of_drays_own_stays() -> None:
    own = ConfigError("no such model")
    assert start_error(own) is own


@pytest.mark.parametrize(
    ("error", "told", "oom"),
    [
        (ValueError("the first line\nand another"), "ValueError: the first line", False),
        (MemoryError("no room"), "MemoryError: no room", True),
        (KeyError(), "KeyError: no reason given", False),
    ],
)
def test_another_is_told_by_its_class_and_first_line(error: Exception, told: str, oom: bool) -> None:
    found = start_error(error)
    assert isinstance(found, EngineStartError)
    assert str(found).startswith(told)
    assert "another" not in str(found)
    assert found.oom is oom
