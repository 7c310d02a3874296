"""The primary is lost under load, and its standby promoted."""

import os
from pathlib import Path

import pytest

from replicas import rounds
from seeds import SEED

PROMOTIONS = int(os.environ.get("REPLICA_PROMOTIONS", "6"))

pytestmark = pytest.mark.usefixtures("postgresql")


@pytest.mark.timeout(600)
def test_a_synchronous_standby_that_is_promoted_has_all_that_was_answered(tmp_path: Path) -> None:
    print(f"SEED={SEED} repeats the choices")
    outcome = rounds.promote(tmp_path, SEED, PROMOTIONS)
    print(outcome.report())
    assert outcome.complaints == []
    assert outcome.kills == PROMOTIONS
