"""Replicas are killed under load, and nobody notices: `make replicas` makes forty rounds."""

import os
import random
from pathlib import Path

import pytest

import postgres
from replicas import rounds

ROUNDS = int(os.environ.get("REPLICA_ROUNDS", "40"))


@pytest.mark.timeout(900)
def test_replicas_that_are_killed_lose_nothing_and_do_nothing_twice(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    seed = int(os.environ.get("REPLICA_SEED", "") or random.SystemRandom().getrandbits(31))
    print(f"seed {seed}: REPLICA_SEED={seed} repeats its choices")
    outcome = rounds.run(tmp_path, database.create_database("kills"), seed, ROUNDS)
    print(outcome.report())
    assert outcome.complaints == []
    assert outcome.refused == 0
    assert outcome.kills >= ROUNDS
