"""Replicas are killed under load, and nobody notices: `make replicas` makes forty rounds."""

import os
from pathlib import Path

import pytest

import postgres
from replicas import rounds
from seeds import SEED

ROUNDS = int(os.environ.get("REPLICA_ROUNDS", "40"))


@pytest.mark.timeout(900)
def test_replicas_that_are_killed_lose_nothing_and_do_nothing_twice(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    print(f"SEED={SEED} repeats the choices")
    outcome = rounds.run(tmp_path, database.create_database("kills"), SEED, ROUNDS)
    print(outcome.report())
    assert outcome.complaints == []
    assert outcome.refused == 0
    assert outcome.kills >= ROUNDS
