"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray import wording

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.32, "320 ms"),
        (0.9996, "1 s"),
        (4.26, "4.3 s"),
        (59.96, "1 min"),
        (61, "1 min 1 s"),
        (3599.6, "1 h"),
        (11_520, "3 h 12 min"),
        (86_400 * 5 + 7200, "5 d 2 h"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert wording.duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.05, "0.05"), (64, "64"), (999.7, "1k"), (12_345, "12.3k"), (4_560_000, "4.56M")],
)
def test_compact(value: float, words: str) -> None:
    assert wording.compact(value) == words


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [
        (1, 3, "33.3%"),
        (0, 5, "0%"),
        (5, 5, "100%"),
        (1, 1_000_000, "<0.1%"),
        (999_999, 1_000_000, ">99.9%"),
        (1, 0, wording.NONE),
    ],
)
def test_share_never_rounds_something_to_nothing(part: float, whole: float, words: str) -> None:
    assert wording.share(part, whole) == words


def test_sizes_and_moments_and_plurals() -> None:
    assert [wording.size(n) for n in (812, 12_300, 999_960, 8_000_000_000)] == [
        "812 B",
        "12.3 KB",
        "1 MB",
        "8 GB",
    ]
    assert wording.moment(0) == "1970-01-01 00:00:00 UTC"
    assert [wording.setting(v) for v in (None, "{}", False, True, 0)] == [wording.NONE] * 2 + [
        "off",
        "on",
        "0",
    ]
    assert wording.stretch(0, 61) == "1970-01-01 00:00:00 to 00:01:01 UTC"
    assert wording.stretch(0, 86_400) == "1970-01-01 00:00:00 to 1970-01-02 00:00:00 UTC"
    assert [wording.plural(n, "row") for n in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
    assert wording.clip("x" * 50, 10) == "x" * 9 + "…"


@given(st.floats(min_value=1e-3, max_value=1e13))
def test_compact_stays_within_one_per_cent(value: float) -> None:
    factors = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    words = wording.compact(value)
    read = float(words.rstrip("kMGT")) * factors.get(words[-1], 1)
    assert read == pytest.approx(value, rel=0.01, abs=1e-4)


@given(st.floats(min_value=0, max_value=1e9))
def test_duration_never_shows_sixty_of_anything(seconds: float) -> None:
    assert not wording.duration(seconds).replace("260 min", "").startswith("60 ")
    assert " 60 " not in wording.duration(seconds)
