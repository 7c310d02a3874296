"""Kills of replicas under load, and losses of their primary, one after another.

A kill takes one or two of three replicas, at once or in mid-request. Where the primary of the
synchronous pair is lost, the standby is promoted, and gets a standby of its own.
"""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kills import rounds
from kills.outcome import Laps
from kills.processes import Service, let_pass
from replicas import judge
from replicas.cluster import Cluster
from replicas.pair import Pair

TWO: Final = 0.25
"""How many of the rounds kill two replicas of three."""

IN_REQUEST: Final = 0.6
"""How many of the kills a client makes itself, in the midst of its request."""

MANY: Final = 30
"""In so many rounds some kill falls in a request, whatever chance has."""

AWAY_SECONDS: Final = (0.0, 0.0, 0.1, 0.4, 1.5)
"""How long a killed replica stays away: the longest lets the others take over its claims."""

MOST_LATE_SECONDS: Final = 0.5
"""The longest wait between the loss of the primary and the promotion of its standby."""


class Outcome(NamedTuple):
    """What the rounds came to."""

    complaints: list[str]
    kills: int
    promotions: int
    in_request: int
    answered: Counter[str]
    reads: int
    refused: int
    """Requests that a replica answered with 503: while it found no primary, or was busy."""
    taken_over: int
    """Operations whose task was claimed more than once."""
    stale_seconds: float
    laps: Laps

    def report(self) -> str:
        """Return the counts, for people."""
        answers = ", ".join(f"{n} x {what}" for what, n in sorted(self.answered.items()))
        return (
            f"{self.kills} kills, {self.in_request} in the midst of a request; "
            f"{self.promotions} promotions\n"
            f"{self.reads} documents noted; answered: {answers}; {self.refused} x 503\n"
            f"{self.taken_over} operations were claimed more than once\n"
            f"what others had read replaced was read for {self.stale_seconds:.2f} s at the most\n"
            f"time: {self.laps}"
        )


class Rounds:
    """Replicas on a synchronous pair, under load, and what has happened to them."""

    def __init__(self, cluster: Cluster, pair: Pair, chance: random.Random) -> None:
        self.kills = self.in_request = self.promotions = 0
        self._cluster = cluster
        self._pair = pair
        self._chance = chance

    def kill(self) -> None:
        """Kill a replica or two, and start them again."""
        cluster, chance = self._cluster, self._chance
        let_pass(chance.uniform(0.1, 0.6))
        victims = chance.sample([*cluster.replicas.values()], 2 if chance.random() < TWO else 1)
        if chance.random() < IN_REQUEST and (hit := _by_client(cluster, chance)):
            self.in_request += 1
            victims = [hit, *victims[1:]] if hit not in victims[1:] else [hit]
        for victim in victims:
            if victim.runs:
                victim.kill()
        for victim in victims:
            assert victim.reap() == -9, victim.said()
        self.kills += len(victims)
        let_pass(chance.choice(AWAY_SECONDS))
        for victim in victims:
            victim.start(fresh=False)
        for victim in victims:
            victim.wait_until_ready()
        cluster.resolve()

    def promote(self) -> None:
        """Lose the primary, and promote its standby."""
        let_pass(self._chance.uniform(0.5, 1.5))
        self._pair.lose_primary(self._chance.uniform(0.0, MOST_LATE_SECONDS))
        self._pair.add_standby()
        self._cluster.wait_until_ready()
        self.promotions += 1


def run(folder: Path, seed: int, kills: int, promotions: int) -> Outcome:
    """Do all of it and judge.

    Args:
        folder: Empty; holds everything.
        seed: Of every choice.
        kills: In how many rounds replicas are killed.
        promotions: How often the primary is lost, at any time between the others.
    """
    chance = random.Random(seed)
    laps = Laps()
    with Pair(synchronous=True) as pair, Cluster(folder, pair.url, seed) as cluster:
        cluster.prepare()
        laps.end("start")
        done = Rounds(cluster, pair, chance)
        turns = [("kills", done.kill)] * kills + [("promotions", done.promote)] * promotions
        chance.shuffle(turns)
        for lap, turn in turns:
            turn()
            laps.end(lap)
        complaints = cluster.settle()
        if kills >= MANY and not done.in_request:
            complaints.append(f"none of {done.kills} kills fell in a request")
        laps.end("settle and judge")
        journals = cluster.journals()
        entries = [entry for each in journals.values() for entry in each]
        history = cluster.ask("GET", "/v1/history?limit=1000")["operations"]
        return Outcome(
            complaints=complaints,
            kills=done.kills,
            promotions=done.promotions,
            in_request=done.in_request,
            answered=Counter(_answers(entries)),
            reads=sum(entry["what"] == "read" for entry in entries),
            refused=sum(entry["what"] == "away" for entry in entries),
            taken_over=sum(operation.get("attempt", 0) > 1 for operation in history),
            stale_seconds=judge.longest_stale(journals),
            laps=laps,
        )


def _answers(entries: Iterable[dict[str, Any]]) -> Iterable[str]:
    return (f"{e['kind']} {e['status']}" for e in entries if e["what"] == "answered")


def _by_client(cluster: Cluster, chance: random.Random) -> Service | None:
    """Let a client kill the replica that it asks, in the midst of a request; return which."""
    kind = chance.choice(rounds.IN_REQUEST)
    guests = kind in {"read", "approve"}
    able = [name for name in cluster.clients if name.startswith("guest") == guests]
    delay = chance.choice(rounds.DELAYS.get(kind, rounds.DELAYS_OF_WRITES))
    order = {"kind": kind, "pids": cluster.pids(), "delay": delay, "part": 1.0}
    for name in chance.sample(able, min(2, len(able))):
        said = cluster.order(name, do="kill", **order)
        if said is None:
            said = cluster.order(name, do="drop")
        assert said, f"{name} takes no orders"
        if said["killed"]:
            return [*cluster.replicas.values()][said["place"]]
    return None
