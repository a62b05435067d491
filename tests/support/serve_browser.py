"""Chromium, driven by Playwright under the page's own security policy."""

from __future__ import annotations

import os
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.source_tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = ROOT / ".venv" / "web" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = ROOT / "build" / "web"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the Chromium of the system, without its sandbox for root."""
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    assert program is not None, "there is no Chromium; install it: apt-get install -y chromium"
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    from playwright.sync_api import sync_playwright  # installed by `make test-web` only

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"] if root else [])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """An open page, and everything that went wrong in it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    """Errors of scripts, violations of the policy, requests to other hosts."""
    urls: list[str] = field(default_factory=list)
    received: int = 0
    """Bytes of all bodies."""

    def wait_for(self, holds: Callable[[], Any], what: str, seconds: float = 15) -> Any:
        """Wait until a condition holds. Playwright's own wait would need eval, which the policy forbids."""
        for _ in range(int(seconds * 50)):
            if found := holds():
                return found
            self.page.wait_for_timeout(20)
        raise AssertionError(f"{what} did not happen within {seconds} s; problems: {self.problems}")

    def wait_until_drawn(self, at: str | None = None) -> None:
        """Wait for the picture, of a position if one is given."""
        self.wait_for(
            lambda: (
                (drawn := self.page.evaluate("document.body.dataset.drawn")) is not None
                and (at is None or drawn == at)
            ),
            f"drawing {at or ''}",
        )

    def pixel(self, x: float, y: float, canvas: str = ".frame canvas") -> tuple[int, int, int]:
        """Return the colour at a share of the width and height of a canvas."""
        found = self.page.evaluate(
            """([selector, x, y]) => {
                const canvas = document.querySelector(selector);
                const at = [Math.floor(x * canvas.width), Math.floor(y * canvas.height)];
                return [...canvas.getContext("2d").getImageData(at[0], at[1], 1, 1).data];
            }""",
            [canvas, x, y],
        )
        return (found[0], found[1], found[2])


@contextmanager
def visiting(
    browser: Browser, url: str, *, scheme: Any = "light", width: int = 1280, height: int = 1000
) -> Iterator[Visit]:
    """Open a URL in a fresh context."""
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page = context.new_page()
    visit = Visit(page)
    host = url.split("/")[2]

    def note(request: Any) -> None:
        visit.urls.append(request.url)
        if request.url.split("/")[2:3] != [host] and not request.url.startswith("blob:"):
            visit.problems.append(f"request to {request.url}")

    page.on("request", note)
    page.on("requestfinished", lambda each: _count(visit, each))
    page.on("pageerror", lambda error: visit.problems.append(str(error)))
    page.on(
        "console",
        lambda message: visit.problems.append(message.text) if message.type in ("error", "warning") else None,
    )
    try:
        page.goto(url)
        yield visit
    finally:
        context.close()


def _count(visit: Visit, request: Any) -> None:
    sizes = request.sizes()
    visit.received += sizes["responseBodySize"] + sizes["responseHeadersSize"]


def axe_violations(page: Page) -> list[str]:
    """Check the accessibility of a page."""
    page.evaluate(AXE.read_text(encoding="utf-8") + "\n;undefined")
    found = page.evaluate("axe.run()")
    return [
        f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes']][:3]}"
        for each in found["violations"]
    ]


def picture_path(name: str) -> Path:
    """Return where a screenshot goes."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES / f"{name}.png"


def compare_pictures(browser: Browser, one: Path, other: Path) -> float:
    """Return the share of pixels that clearly differ between two pictures; 1 if their sizes differ."""
    page = browser.new_page()
    try:
        urls = [f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}" for path in (one, other)]
        found: float = page.evaluate(
            """async (urls) => {
                const pixels = async (url) => {
                    const image = new Image();
                    image.src = url;
                    await image.decode();
                    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
                    context.drawImage(image, 0, 0);
                    return context.getImageData(0, 0, image.width, image.height).data;
                };
                const [one, other] = await Promise.all(urls.map(pixels));
                if (one.length !== other.length) return 1;
                let differing = 0;
                for (let at = 0; at < one.length; at += 4)
                    if ([0, 1, 2].some((part) => Math.abs(one[at + part] - other[at + part]) > 48))
                        differing++;
                return (4 * differing) / one.length;
            }""",
            urls,
        )
        return found
    finally:
        page.close()
