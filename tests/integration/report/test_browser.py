"""The report in a real browser: it loads alone, without complaint, and fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.report import render_html
from tests.support import report_jobs
from tests.support.browser import screenshot, visit
from tests.support.packages import CHROMIUM

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed (Debian package chromium)"),
]


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_the_page_loads_alone_and_fits(tmp_path: Path, width: int, dark: bool) -> None:
    report = tmp_path / "report.html"
    report.write_text(render_html(report_jobs.resumed()), encoding="utf-8")
    with visit(report, width=width, dark=dark) as seen:
        assert seen.complaints == []
        assert seen.requests == [report.as_uri()]
        assert seen.page.title() == "nightly-summaries · dray"
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        tables = seen.page.locator("table").evaluate_all(
            "all => all.map(t => [t.offsetWidth > t.parentElement.clientWidth, "
            "getComputedStyle(t.parentElement).overflowX, t.parentElement.tabIndex])"
        )
        assert all(how == ["auto", 0] for wide, *how in tables if wide), tables  # wide ones can be scrolled
        assert any(wide for wide, *_ in tables) is (width < 500)
        marks = seen.page.locator("svg rect.shield")
        assert marks.count() > 20
        box = marks.first.bounding_box()
        assert box is not None
        assert box["width"] > 1
        paper = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(22, 23, 21)") is dark


@pytest.mark.heavy(one_of=3)
def test_a_picture_can_be_taken(tmp_path: Path) -> None:
    report, picture = tmp_path / "report.html", tmp_path / "report.png"
    report.write_text(render_html(report_jobs.small()), encoding="utf-8")
    screenshot(report, picture, width=800, height=600)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
