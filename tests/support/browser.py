"""A headless Chromium: pictures of pages, and what a page does while it loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.packages import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Page

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Visit:
    """An open page, with the console errors and the requests it made."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def visit(target: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Iterator[Visit]:
    """Open a file or a URL; the browser ends with the block."""
    from playwright.sync_api import sync_playwright

    address = target if isinstance(target, str) and "://" in target else Path(target).resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(_ARGUMENTS))
        try:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            seen = Visit(page=page)
            page.on(
                "console", lambda said: seen.complaints.append(said.text) if said.type == "error" else None
            )
            page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            page.on("request", lambda request: seen.requests.append(request.url))
            page.goto(address, wait_until="load")
            yield seen
        finally:
            browser.close()


def screenshot(
    target: Path | str,
    png: Path | str,
    width: int = 1200,
    height: int = 900,
    dark: bool = False,
    *,
    full_page: bool = True,
    settle_seconds: float = 0.0,
) -> None:
    """Save a picture of a file or a URL; ``settle_seconds`` is for pages that draw after loading."""
    with visit(target, width=width, height=height, dark=dark) as seen:
        seen.page.wait_for_timeout(settle_seconds * 1000)
        seen.page.screenshot(path=str(png), full_page=full_page)
