"""A PostgreSQL that keeps what it has committed, for all tests of a file."""

from collections.abc import Iterator

import pytest

import postgres
from end_to_end.conftest import shared_folder

__all__ = ["shared_folder"]


@pytest.fixture(scope="session")
def postgresql() -> None:
    if not postgres.found():
        pytest.skip("PostgreSQL is not installed")


@pytest.fixture(scope="module")
def database(postgresql: None) -> Iterator[postgres.Postgres]:
    assert postgresql is None
    server = postgres.Postgres().start()
    yield server
    server.remove()
