"""Twenty kills of fresh processes under load; `make kill` makes two hundred."""

import random
from pathlib import Path

import pytest

from kills import rounds

KILLS = 20


@pytest.mark.timeout(480)
def test_nothing_that_was_answered_is_lost_and_no_act_is_repeated(folder: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}: 'make kill KILLS={KILLS} FRESH={KILLS} SEED={seed}' repeats its choices")
    outcome = rounds.run(folder, seed, KILLS, fresh=KILLS)
    print(outcome.report())
    assert outcome.complaints == []
    assert len(outcome.kills) >= KILLS
    assert sum(kill.fresh for kill in outcome.kills) >= KILLS
    assert outcome.shortfalls() == []
