# SPDX-License-Identifier: Apache-2.0
"""Open every page of the built site in a headless browser: ``make docs-look``.

At the width of a phone and of a desktop no page may scroll sideways, log an error, or ask for something that is not there or
on another host. Screenshots of the main pages are left beside the site.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import Page, sync_playwright

WIDTHS = {"phone": 390, "desktop": 1280}
SHOWN = (
    "index",
    "quickstart",
    "examples",
    "launch",
    "reference/strategies",
    "reference/commands",
    "recipes/albert_mlm",
)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Requests are not news."""


def problems(page: Page, address: str, name: str) -> Iterator[str]:
    """What is wrong with one page, as sentences.

    Args:
        page: Of the browser.
        address: Of the server, ``http://host:port``.
        name: Of the page's file.

    """
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("requestfailed", lambda request: found.append(f"failed: {request.url}"))
    page.on("response", lambda answer: found.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith((address, "data:", "blob:")) else found.append(asked.url)
    )
    page.goto(f"{address}/{name}", wait_until="networkidle")
    wide, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    yield from found
    if wide > room:
        yield f"scrolls sideways: {wide} px on a screen of {room}"


def main(site: Path) -> int:
    """Look at all pages; the exit code is 1 if any has a problem."""
    browser_program = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_program is None:
        sys.exit("error: no chromium was found on the PATH. HINT: apt-get install chromium.")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    count = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_program, args=["--no-sandbox"])
        for device, width in WIDTHS.items():
            for name in names:
                page = browser.new_page(viewport={"width": width, "height": 844})
                for problem in problems(page, address, name):
                    count += 1
                    print(f"{device}: {name}: {problem}")
                if name.removesuffix(".html") in SHOWN:
                    picture = f"{device}-{name.removesuffix('.html').replace('/', '-')}.png"
                    page.screenshot(path=site.parent / "screenshots" / picture)
                page.close()
        browser.close()
    server.shutdown()
    print(f"{len(names)} pages at {' and '.join(map(str, WIDTHS.values()))} px: {count} problems")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
