"""The pytest plugin: the fixture `forewarn_emulator`.

pytest imports this module in every run. It imports nothing else of the package in a run without a
test that uses the fixture.
"""

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forewarn.testing import Emulator


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the package before a test freezes time: it keeps the kind of datetime that it meets."""
    if any("forewarn_emulator" in getattr(item, "fixturenames", ()) for item in session.items):
        importlib.import_module("forewarn.client.aio")
        with contextlib.suppress(ImportError):  # an extra that is missing: the fixture says so
            importlib.import_module("forewarn.testing.emulator")


@pytest.fixture
def forewarn_emulator() -> Iterator["Emulator"]:
    """A server of Scheduled Events on a loopback port, with a clock that the test moves."""
    from forewarn.testing import Emulator  # noqa: PLC0415 - runs that do not use it start sooner

    with Emulator() as emulator:
        yield emulator
        found = emulator.warnings
    for warning in found:
        warnings.warn(f"of the handler: {warning}", stacklevel=1)
