"""What actions work upon: units, and a web server."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.workplace import Units
from client.scripted import Keeping


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Units:
    made = Units(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


@pytest.fixture
def site() -> Iterator[Keeping]:
    with Keeping() as server:
        yield server
