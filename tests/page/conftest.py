"""A running service on TCP, and Debian's Chromium, which is logged in to its page."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from forewarn.store import memory
from page.site import Site
from server.running import Running, settings_in

CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: install Debian's package")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield launched
        launched.close()


@pytest.fixture
def site(tmp_path: Path, browser: Browser) -> Iterator[Site]:
    """A service with a fleet of every kind, and what its windows complained about: nothing."""
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, memory.MemoryStore()) as running, Site(running, browser) as opened:
        yield opened
