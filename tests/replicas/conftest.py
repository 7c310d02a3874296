"""A PostgreSQL that keeps what it has committed, for all tests of a file."""

from collections.abc import Iterator

import pytest

import postgres


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.Postgres]:
    if not postgres.found():
        pytest.skip("PostgreSQL is not installed")
    server = postgres.Postgres().start()
    yield server
    server.remove()
