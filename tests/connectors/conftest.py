"""A workshop for each test."""

from pathlib import Path

import pytest

from connectors.workshop import Workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)
