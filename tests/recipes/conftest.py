"""Folders whose paths are short enough for a unix socket, wherever the tests run."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of this test's own."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)
