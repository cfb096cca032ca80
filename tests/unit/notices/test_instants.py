"""Times as clouds write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.notices.instants import instant, on_this_clock

pytestmark = pytest.mark.unit

AT = datetime(2026, 11, 21, 8, 22, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T08:22:00Z",  # AWS, Kubernetes, and Azure's own mock server
        "2026-11-21T08:22:00.000000Z",  # Kubernetes' MicroTime
        "2026-11-21T08:22:00+00:00",
        "2026-11-21T09:22:00+01:00",
        "2026-11-21 08:22:00Z",
        " 2026-11-21T08:22:00Z\n",
        "2026-11-21T08:22:00",
        "Sat, 21 Nov 2026 08:22:00 GMT",  # Azure's NotBefore, HTTP's Date
        "Sat, 21 Nov 2026 08:22:00 -0000",
        "21 Nov 2026 08:22:00 GMT",  # scheduled maintenance on AWS
        "Mon, 21 Nov 2026 08:22:00 GMT",  # Azure's documentation gets days of the week wrong
    ],
)
def test_every_format_means_the_same(text: str) -> None:
    assert instant(text) == AT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026-11-21",
        "08:22:00",
        "0001-01-01T00:00:00Z",
        "9" * 400 + ":00",
        None,
        7,
        [],
        "::",
        "Z:",
    ],
)
def test_what_is_no_time_is_none(text: object) -> None:
    assert instant(text) is None


ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=-9, minutes=-30))])
MOMENTS = st.datetimes(timezones=ZONES)
WRITTEN = MOMENTS.map(datetime.isoformat) | MOMENTS.map(format_datetime)
NEARLY = st.builds(  # of any text, hardly one is a time
    lambda text, at, sign: text[:at] + sign + text[at + 1 :],
    WRITTEN,
    st.integers(0, 40),
    st.sampled_from([*"0129:-+ TZ.", ""]),
)


@given(st.one_of(WRITTEN, NEARLY, st.text(), st.none(), st.integers(), st.binary(), st.lists(st.text())))
def test_junk_never_raises(text: object) -> None:
    found = instant(text)
    assert found is None or found > 0


@given(WRITTEN | NEARLY | st.from_regex(r"[0-9:TZ+\-. ,A-Za-z]{0,40}", fullmatch=True))
def test_what_looks_like_a_time_never_raises(text: str) -> None:
    found = instant(text)
    assert found is None or found > 0


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2199, 1, 1)))
def test_both_formats_of_any_time_are_read(moment: datetime) -> None:
    at = moment.replace(microsecond=0, tzinfo=UTC)
    assert instant(at.strftime("%Y-%m-%dT%H:%M:%SZ")) == at.timestamp()
    assert instant(format_datetime(at, usegmt=True)) == at.timestamp()


@given(left=st.floats(-600, 86400), skew=st.floats(-1e7, 1e7), now=st.floats(1e9, 2e9), delay=st.floats(0, 1))
def test_a_deadline_is_as_far_away_on_any_clock(left: float, skew: float, now: float, delay: float) -> None:
    """Whatever the skew, the seconds left are those of the cloud, to within the 2 s that are let be."""
    cloud = now + skew
    here = on_this_clock(cloud + left, said_at=cloud - delay, now=now)
    assert here is not None
    assert abs((here - now) - left) <= 2.0 + delay + 1e-3


def test_clocks_that_agree_leave_the_deadline_exact() -> None:
    assert on_this_clock(AT, said_at=1000.0, now=1001.5) == AT
    assert on_this_clock(AT, said_at=None, now=1.0) == AT
    assert on_this_clock(None, said_at=1.0, now=1.0) is None
    assert on_this_clock(AT, said_at=AT - timedelta(minutes=2).total_seconds(), now=5000.0) == 5120.0
