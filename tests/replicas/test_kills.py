"""Replicas are killed and their primary is lost under load: nothing is lost, nothing done twice.

A kill takes one or two of three replicas, at once or in mid-request. Where the primary of the
synchronous pair is lost, the standby is promoted, and gets a standby of its own. REPLICA_ROUNDS and
REPLICA_PROMOTIONS say how often.
"""

import os
import random
from pathlib import Path
from typing import Final

import pytest

from kills.cluster import NAMES, Cluster
from kills.processes import let_pass
from kills.rounds import Rounds
from replicas.pair import Pair
from seeds import SEED

ROUNDS: Final = int(os.environ.get("REPLICA_ROUNDS", "") or 40)
PROMOTIONS: Final = int(os.environ.get("REPLICA_PROMOTIONS", "") or 6)

TWO: Final = 0.25
"""How many of the rounds kill two replicas of three."""

MOST_LATE_SECONDS: Final = 0.5
"""The longest wait between the loss of the primary and the promotion of its standby."""


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("postgresql")
def test_replicas_that_are_killed_and_lose_their_primary_lose_nothing_and_do_nothing_twice(
    tmp_path: Path,
) -> None:
    print(f"SEED={SEED} repeats the choices")
    chance = random.Random(SEED)
    turns = [True] * ROUNDS + [False] * PROMOTIONS
    chance.shuffle(turns)
    with Pair(synchronous=True) as pair, Cluster(tmp_path, pair.url, SEED) as cluster:
        rounds = Rounds(cluster, chance)
        rounds.begin()
        for is_kill in turns:
            if is_kill:
                rounds.kill(chance.sample(NAMES, 2 if chance.random() < TWO else 1))
                continue
            let_pass(chance.uniform(0.5, 1.5))
            pair.lose_primary(chance.uniform(0.0, MOST_LATE_SECONDS))
            pair.add_standby()
            cluster.wait_until_ready()
            rounds.done["promotions"] += 1
        outcome = rounds.judged()
    print(outcome.report)
    assert outcome.complaints == []
