"""Each test of the shells runs on both; `cloud` is a real endpoint for them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client import shells
from forewarn.testing import Emulator

FLEET = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0", update_domain = 0 }, { name = "web-1", update_domain = 0 }]
"""


@pytest.fixture
def cloud(forewarn_emulator: Emulator) -> Emulator:
    """A real endpoint, which takes whoever asks for web-0, beside web-1 in one scope."""
    forewarn_emulator.fleet(FLEET)
    return forewarn_emulator


@pytest.fixture(params=list(shells.SHELLS))
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., shells.Shell]]:
    """Make clients of one kind, with short times; they are closed at the end."""
    made: list[shells.Shell] = []

    def make(endpoint: str, **options: Any) -> shells.Shell:
        client = shells.SHELLS[request.param](endpoint, **{"pace": shells.QUICK, **options})
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
        if isinstance(client, shells.Awaited):
            client.stop()
