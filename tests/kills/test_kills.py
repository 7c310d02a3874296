"""A few kills of fresh processes under load; `python -m kills` makes two hundred of forked ones."""

import os
import tempfile
from pathlib import Path
from typing import Final

import pytest

from kills import rounds
from seeds import SEED

KILLS: Final = int(os.environ.get("KILLS", "") or 3)


@pytest.mark.soak
@pytest.mark.timeout(480)
def test_nothing_that_was_answered_is_lost_and_no_act_is_repeated() -> None:
    print(f"SEED={SEED} repeats the choices")
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:  # a socket's path is short
        outcome = rounds.run(Path(folder), SEED, KILLS, fresh=True)
    print(outcome.report)
    assert outcome.complaints == []
