# SPDX-License-Identifier: Apache-2.0
"""Open every page of the built site in a headless browser: ``make docs-look``.

At the width of a phone and of a desktop no page may scroll sideways, log an error, or ask for something that is not
there or on another host. Screenshots of the main pages are saved next to the site.
"""

from __future__ import annotations

import shutil
import sys
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


class Look:
    """One window of a browser, and what goes wrong in it.

    Args:
        page: Of the browser.
        address: Of the server, ``http://host:port``.

    """

    def __init__(self, page: Page, address: str) -> None:
        self._page, self._address = page, address
        self._found: list[str] = []
        page.on("console", lambda message: message.type == "error" and self._found.append(message.text))
        page.on("pageerror", lambda error: self._found.append(str(error)))
        page.on(
            "response", lambda answer: answer.status >= 400 and self._found.append(f"{answer.status}: {answer.url}")
        )
        page.on("request", lambda asked: self._local(asked.url) or self._found.append(f"another host: {asked.url}"))

    def _local(self, url: str) -> bool:
        return url.startswith((self._address, "data:", "blob:"))

    def problems(self, name: str) -> list[str]:
        """What is wrong with a page, as sentences.

        Args:
            name: Of its file.

        """
        self._found.clear()
        self._page.goto(f"{self._address}/{name}", wait_until="load")
        wide, room = self._page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        sideways = [f"scrolls sideways: {wide} px on a screen of {room}"] if wide > room else []
        return [*self._found, *sideways]


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
            page = browser.new_page(viewport={"width": width, "height": 844})
            look = Look(page, address)
            for name in names:
                for problem in look.problems(name):
                    count += 1
                    print(f"{device}: {name}: {problem}")
                if name.removesuffix(".html") in SHOWN:
                    picture = f"{device}-{name.removesuffix('.html').replace('/', '-')}.png"
                    page.screenshot(path=site.parent / "screenshots" / picture)
        browser.close()
    server.shutdown()
    print(f"{len(names)} pages at {' and '.join(map(str, WIDTHS.values()))} px: {count} problems")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
