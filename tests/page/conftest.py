"""A running service on TCP, and Debian's Chromium, which is logged in to its page."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forewarn.server.settings import (
    MaintenanceSettings,
    SimulatedSettings,
    UnitCheck,
)
from forewarn.store.sqlite import InMemoryStore
from page.site import Chromium, Site
from server.running import Running, settings_in

CHROMIUM = Chromium()
"""Of the files that open a browser, which come one after the other."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser before a file that may need a loop of its own."""
    if nextitem is None or "playwright" not in nextitem.path.read_text("utf-8"):
        CHROMIUM.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    yield CHROMIUM
    CHROMIUM.close()


@contextlib.contextmanager
def opened(
    folder: Path, chromium: Chromium, simulated: SimulatedSettings | None = None
) -> Iterator[Site]:
    """A service with a fleet of every kind, whose windows complain about nothing at its end.

    Its check `probe` never passes.
    """
    wanted = msgspec.structs.replace(
        settings_in(folder, simulated, listen="127.0.0.1:0"),
        maintenance=MaintenanceSettings(check=(UnitCheck(name="probe", program=("/bin/false",)),)),
    )
    with Running(wanted, InMemoryStore()) as running, Site(running, chromium) as site:
        yield site


@pytest.fixture
def site(tmp_path: Path, chromium: Chromium) -> Iterator[Site]:
    """A site of this test's own."""
    with opened(tmp_path, chromium) as site:
        yield site


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, chromium: Chromium) -> Iterator[Site]:
    """A site with maintenance in every state, for tests that only look."""
    simulated = SimulatedSettings(reboot_seconds=3600, freeze_seconds=0, redeploy_seconds=3600)
    with opened(tmp_path_factory.mktemp("busy"), chromium, simulated) as site:
        site.make_busy()
        yield site
