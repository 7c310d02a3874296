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
from page.site import Contexts, Site
from server.running import Running, settings_in

CONTEXTS = Contexts()
"""The files that open a browser come one after the other, and share it."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser before a file that may need a loop of its own."""
    if nextitem is None or "playwright" not in nextitem.path.read_text("utf-8"):
        CONTEXTS.close()


@pytest.fixture(scope="session")
def contexts() -> Iterator[Contexts]:
    yield CONTEXTS
    CONTEXTS.close()


@contextlib.contextmanager
def opened(
    folder: Path, contexts: Contexts, simulated: SimulatedSettings | None = None
) -> Iterator[Site]:
    """A service with a fleet of every kind, whose windows complain about nothing at its end.

    Its check `probe` never passes.
    """
    wanted = msgspec.structs.replace(
        settings_in(folder, simulated, listen="127.0.0.1:0"),
        maintenance=MaintenanceSettings(check=(UnitCheck(name="probe", program=("/bin/false",)),)),
    )
    with Running(wanted, InMemoryStore()) as running, Site(running, contexts) as site:
        yield site


@pytest.fixture
def site(tmp_path: Path, contexts: Contexts) -> Iterator[Site]:
    """A site of this test's own."""
    with opened(tmp_path, contexts) as site:
        yield site


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, contexts: Contexts) -> Iterator[Site]:
    """A site with maintenance in every state, for tests that only look."""
    simulated = SimulatedSettings(reboot_seconds=3600, freeze_seconds=0, redeploy_seconds=3600)
    with opened(tmp_path_factory.mktemp("busy"), contexts, simulated) as site:
        site.make_busy()
        yield site
