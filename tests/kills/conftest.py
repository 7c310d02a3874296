"""A folder whose path is short enough for a unix socket, wherever the tests run."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder of this test's own."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)
