"""Replicas are killed and their primary is lost under load: nothing is lost, nothing done twice.

REPLICA_ROUNDS and REPLICA_PROMOTIONS say how often.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from replicas import rounds
from seeds import SEED

ROUNDS: Final = int(os.environ.get("REPLICA_ROUNDS", "") or 40)
PROMOTIONS: Final = int(os.environ.get("REPLICA_PROMOTIONS", "") or 6)


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("postgresql")
def test_replicas_that_are_killed_and_lose_their_primary_lose_nothing_and_do_nothing_twice(
    tmp_path: Path,
) -> None:
    print(f"SEED={SEED} repeats the choices")
    outcome = rounds.run(tmp_path, SEED, ROUNDS, PROMOTIONS)
    print(outcome.report)
    assert outcome.complaints == []
