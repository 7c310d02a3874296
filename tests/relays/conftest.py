"""What all of these tests need: root's network namespaces, PostgreSQL, and time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import postgres
from relays import network, production

HERE = Path(__file__).resolve().parent
TEST_SECONDS = 600
"""For a machine that does much else; alone, none takes a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None and HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[production.Production]:
    """Three replicas on PostgreSQL, for all tests of a file: each has hosts of its own."""
    why = network.missing() or ("" if postgres.found() else "PostgreSQL is not installed")
    if why:
        pytest.skip(why)
    with production.made(tmp_path_factory.mktemp("site")) as made:
        yield made
