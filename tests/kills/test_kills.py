"""A few kills of fresh processes under load; `make soak` makes twenty, `make kill` two hundred."""

import random
from pathlib import Path

import pytest

from kills import rounds

FEW = 3
MANY = 20
"""Enough to meet an act in each of its phases, and a start."""


@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
@pytest.mark.timeout(480)
def test_nothing_that_was_answered_is_lost_and_no_act_is_repeated(folder: Path, kills: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}: 'make kill KILLS={kills} FRESH={kills} SEED={seed}' repeats its choices")
    outcome = rounds.run(folder, seed, kills, fresh=kills)
    print(outcome.report())
    assert outcome.complaints == []
    assert len(outcome.kills) >= kills
    assert sum(kill.fresh for kill in outcome.kills) >= kills
    if kills == MANY:
        assert outcome.shortfalls() == []
