"""Clients, and `cloud`: a real endpoint for them."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from client.scripted import QUICK
from forewarn.client.sync import Client
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


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Make clients with short times; they are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda endpoint, **options: stack.enter_context(
            Client(endpoint, **{"pace": QUICK, **options})
        )
