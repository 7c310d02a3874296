"""A few kills of fresh processes under load; `make kill`, and with it `make soak`, makes 200."""

from pathlib import Path

import pytest

from kills import rounds
from seeds import SEED

KILLS = 3


@pytest.mark.timeout(480)
def test_nothing_that_was_answered_is_lost_and_no_act_is_repeated(folder: Path) -> None:
    print(f"seed {SEED}: 'make kill KILLS={KILLS} FRESH={KILLS} SEED={SEED}' repeats its choices")
    outcome = rounds.run(folder, SEED, KILLS, fresh=KILLS)
    print(outcome.report())
    assert outcome.complaints == []
    assert len(outcome.kills) >= KILLS
    assert sum(kill.fresh for kill in outcome.kills) >= KILLS
