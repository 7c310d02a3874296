"""Relays and replicas are killed under load, and no guest notices, in RELAY_ROUNDS rounds."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import postgres
from relays import rounds
from seeds import SEED

ROUNDS: Final = int(os.environ.get("RELAY_ROUNDS", "") or 40)


@pytest.fixture
def database() -> Iterator[postgres.Postgres]:
    if not postgres.found():
        pytest.skip("PostgreSQL is not installed")
    server = postgres.Postgres().start()
    yield server
    server.remove()


@pytest.mark.timeout(900)
def test_relays_and_replicas_that_are_killed_lose_nothing_and_show_nothing_backwards(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    print(f"SEED={SEED} repeats the choices")
    outcome = rounds.run(tmp_path, database.create_database("kills"), SEED, ROUNDS)
    print(outcome.report)
    assert outcome.complaints == []
