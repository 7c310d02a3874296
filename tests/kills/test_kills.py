"""A few kills of fresh processes under load; `make soak` makes twenty, `make kill` two hundred."""

from pathlib import Path

import pytest

from kills import rounds
from seeds import SEED

FEW = 3
MANY = 20
"""Enough to meet an act in each of its phases, and a start."""


@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
@pytest.mark.timeout(480)
def test_nothing_that_was_answered_is_lost_and_no_act_is_repeated(folder: Path, kills: int) -> None:
    print(f"seed {SEED}: 'make kill KILLS={kills} FRESH={kills} SEED={SEED}' repeats its choices")
    outcome = rounds.run(folder, SEED, kills, fresh=kills)
    print(outcome.report())
    assert outcome.complaints == []
    assert len(outcome.kills) >= kills
    assert sum(kill.fresh for kill in outcome.kills) >= kills
    if kills == MANY:
        assert outcome.shortfalls() == []
