"""Each test of the shells runs on both."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client import shells


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
