"""A service, and the windows that are open on its page."""

import contextlib
import shutil
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from forewarn.vocabulary import AccessRole
from server.running import Client, Running, fleet

SECONDS = 30_000
"""How long a browser may take, in its milliseconds: only the end of waiting."""

WIDE, NARROW = (1440, 1080), (390, 844)

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The browser without windows of its own takes less than half of the other's processor time."""

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

expect.set_options(timeout=SECONDS)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; a test without it is skipped."""
    if CHROMIUM is None:
        pytest.skip("there is no browser: install Debian's package chromium-headless-shell")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield launched
        launched.close()


class Site:
    """Opens windows; at its end no console has said anything."""

    def __init__(self, running: Running, browser: Browser, *, with_fleet: bool = True) -> None:
        self.running = running
        self.url = running.opened.operators[1]
        self.root = running.client()
        self.said: list[str] = []
        """What consoles said, and what the policy kept from loading."""
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        if with_fleet:
            assert self.root.ask("PUT", "/v1/fleet", fleet()).status == 200

    def __enter__(self) -> "Site":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for context in self._contexts:
            context.close()
        if error is None:
            assert self.said == [], self.said

    def link(self, role: AccessRole = AccessRole.ADMIN, name: str = "") -> str:
        """Return a one-time link, of root or of a token with a role."""
        asks = self.root
        if role is not AccessRole.ADMIN or name:
            made = self.root.ask("POST", "/v1/tokens", {"name": name or str(role), "role": role})
            assert made.status == 201, made.body
            asks = Client(self.url, made.json["token"])
        answer = asks.ask("POST", "/v1/logins", {})
        assert answer.status == 201, answer.body
        url: str = answer.json["url"]
        return url

    def context(
        self,
        size: tuple[int, int] = WIDE,
        theme: Any = "light",
        *,
        scripts: bool = True,
        ignore_https_errors: bool = False,
    ) -> BrowserContext:
        """Return a browser without a session."""
        width, height = size
        made = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce",
            java_script_enabled=scripts,
            ignore_https_errors=ignore_https_errors,
        )
        made.set_default_timeout(SECONDS)
        self._contexts.append(made)
        made.on("page", self._listen)
        return made

    def window(
        self,
        role: AccessRole = AccessRole.ADMIN,
        size: tuple[int, int] = WIDE,
        theme: Any = "light",
    ) -> Page:
        """Return a window that is logged in and shows Now, with its stream open."""
        page = self.context(size, theme).new_page()
        page.goto(self.link(role))
        page.wait_for_url(f"{self.url}/")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        return page

    @contextlib.contextmanager
    def complaints(self) -> Iterator[list[str]]:
        """Take what consoles say meanwhile: a test is about it."""
        before = len(self.said)
        taken: list[str] = []
        yield taken
        taken += self.said[before:]
        del self.said[before:]

    def _listen(self, page: Page) -> None:
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
