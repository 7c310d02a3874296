"""The pytest plugin: the fixture `forewarn_emulator`.

pytest imports this module in every run. It imports nothing else of the package before the fixture
is used.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forewarn.testing import Emulator


@pytest.fixture
def forewarn_emulator() -> Iterator["Emulator"]:
    """A server of Scheduled Events on a loopback port, with a clock that the test moves."""
    from forewarn.testing import Emulator  # noqa: PLC0415 - runs that do not use it start sooner

    with Emulator() as emulator:
        yield emulator
        found = emulator.warnings
    for warning in found:
        warnings.warn(f"of the handler: {warning}", stacklevel=1)
