"""Each test of the conformance suite runs with every engine of `engines.ENGINES`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.store.port import Store
from store.engines import ENGINES, SHARED_ENGINES, Engine, parameters


@pytest.fixture(params=parameters(ENGINES), ids=str, scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture(params=parameters([e for e in ENGINES if e.persists]), ids=str, scope="module")
def lasting_engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture
def store(engine: Engine, tmp_path: Path) -> Iterator[Store]:
    opened = engine.open(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=parameters(SHARED_ENGINES), ids=str)
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = request.param.open(tmp_path)
    yield opened
    opened.close()
