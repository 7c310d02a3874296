"""Each test of the conformance suite runs with every engine of `engines.ENGINES`."""

from collections.abc import Iterator

import pytest

from forewarn.store.sql import Store
from store.engines import ENGINES, SHARED_ENGINES, Engine, NewStore, parameters


@pytest.fixture(params=parameters(ENGINES), ids=str, scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture(params=parameters(SHARED_ENGINES), ids=str, scope="module")
def shared_engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture(scope="module")
def new(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewStore]:
    """Make an empty store, again and again: the one before has ended then."""
    yield from _new(engine, tmp_path_factory)


@pytest.fixture(scope="module")
def new_shared(
    shared_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewStore]:
    yield from _new(shared_engine, tmp_path_factory)


def _new(engine: Engine, folders: pytest.TempPathFactory) -> Iterator[NewStore]:
    folder = folders.mktemp("store")
    opened = engine.open(folder)
    yield lambda: engine.emptied(folder, opened)
    opened.close()


@pytest.fixture
def store(new: NewStore) -> Store:
    return new()


@pytest.fixture
def shared_store(new_shared: NewStore) -> Store:
    return new_shared()
