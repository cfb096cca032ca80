"""Where errors that are not dray's own were raised: without a word of what they say."""

from __future__ import annotations

import pickle
import re
from typing import cast

import pytest

from dray.driver.telling.reasons import reason_of
from dray.errors import ConfigError, first_line, noted_at, raised_at, raised_noted
from dray.job import current_job
from dray.report import Pulse
from dray.requests.spool.spool import decode

pytestmark = pytest.mark.unit


def _quotes(_pulse: Pulse) -> None:
    raise TypeError("a prompt")


def _raised_below_dray() -> TypeError:
    with current_job.listening(_quotes), pytest.raises(TypeError) as failed:
        current_job.tell(cast("Pulse", None))
    return failed.value


def test_the_last_of_drays_lines_is_named_and_the_one_below_it() -> None:
    told = raised_at(_raised_below_dray())
    assert re.fullmatch(r" at current_job\.py:\d+, raised in test_errors\.py:\d+", told)


def test_a_line_of_drays_alone_is_named_once() -> None:
    with pytest.raises(ValueError, match="unexpected") as failed:
        decode(b"a prompt")
    assert re.fullmatch(r" at spool\.py:\d+", raised_at(failed.value))


def test_the_reason_that_the_store_keeps_names_the_place() -> None:
    told = reason_of(_raised_below_dray())
    assert re.fullmatch(r"TypeError at current_job\.py:\d+, raised in test_errors\.py:\d+", told)


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert raised_at(TypeError("a prompt")) == ""


@pytest.mark.parametrize("error", [ValueError(), ValueError(""), ValueError(" \n")])
def test_an_error_without_text_has_another_first_line(error: Exception) -> None:
    assert first_line(error, 200, "ValueError") == "ValueError"
    assert first_line(error, 200) == ""


def test_the_first_line_is_cut_and_what_follows_it_is_left_out() -> None:
    error = ValueError("\nno such bucket\nGET /?signature=secret")
    assert first_line(error, 7) == "no such"
    assert first_line(error) == "no such bucket"


def test_a_place_travels_to_another_process() -> None:
    with pytest.raises(TypeError) as failed, raised_noted():
        raise _raised_below_dray()
    came = pickle.loads(pickle.dumps(failed.value))
    assert came.__traceback__ is None
    assert re.fullmatch(r" at current_job\.py:\d+, raised in test_errors\.py:\d+", noted_at(came))


def test_what_dray_raises_says_enough() -> None:
    with pytest.raises(ConfigError) as failed, raised_noted():
        raise ConfigError("no such model")
    assert noted_at(failed.value) == ""
