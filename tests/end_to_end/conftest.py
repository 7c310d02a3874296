"""Folders whose paths are short enough for a unix socket, and an endpoint of the test's own."""

import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from end_to_end.agents import TWO, Agent, Endpoint


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder of this test's own."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def shared_folder() -> Generator[Path]:
    """A folder of this module's own."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


@pytest.fixture
def cloud() -> Generator[Endpoint]:
    """An endpoint whose document is the test's."""
    with Endpoint() as server:
        yield server


@pytest.fixture
def agents(tmp_path: Path, cloud: Endpoint) -> Generator[Callable[..., Agent]]:
    """Make agents whose rule is `TWO`, where nothing else is given, and end them."""
    made: list[Agent] = []

    def make(rules: str = TWO, machine: str = "web-0", url: str = cloud.url) -> Agent:
        made.append(Agent(tmp_path / machine, url, rules, machine=machine))
        return made[-1]

    yield make
    for agent in made:
        agent.kill()
