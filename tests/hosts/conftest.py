"""The lab is made once a run of pytest; `python -m hosts` runs each file in one of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import lab as labs
from hosts import namespace

HERE = Path(__file__).resolve().parent

TEST_SECONDS = 900
"""For a machine that does much else; alone, none takes a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None and HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_missing() -> None:
    why = namespace.outside() or labs.missing()
    if why:
        pytest.skip(why)


@pytest.fixture(scope="session")
def as_root(_nothing_is_missing: None) -> None:
    why = (
        labs.missing_of_root()
        if namespace.with_root()
        else "it needs root: make prove AREA=hosts-root"
    )
    if why:
        pytest.skip(why)


@pytest.fixture(scope="session")
def lab(_nothing_is_missing: None) -> Iterator[labs.Lab]:
    """The lab of a run of pytest, which is one file's; where the service is beside, no relays."""
    beside = os.environ.get("HOSTS_STORIES", "").endswith("beside.txt")
    with labs.made("h1", "h2", has_relays=not beside) as made:
        yield made
