"""Kills of replicas under load: one or two of three at a time, at once or in mid-request."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kills import rounds
from kills.processes import Service, let_pass
from replicas.cluster import Cluster
from replicas.pair import Pair

TWO: Final = 0.25
"""How many of the rounds kill two replicas of three."""

IN_REQUEST: Final = 0.6
"""How many of the kills a client makes itself, in the midst of its request."""

AWAY_SECONDS: Final = (0.0, 0.0, 0.1, 0.4, 1.5)
"""How long a killed replica stays away: the longest lets the others take over its claims."""

END_SECONDS: Final = 60.0


class Outcome(NamedTuple):
    """What the rounds came to."""

    kills: int
    in_request: int
    complaints: list[str]
    answered: Counter[str]
    reads: int
    refused: int
    """Requests that a replica answered with 503, although the database was there."""
    taken_over: int
    """Operations whose task was claimed more than once."""

    def report(self) -> str:
        """Return the counts, for people."""
        answers = ", ".join(f"{n} x {what}" for what, n in sorted(self.answered.items()))
        return (
            f"{self.kills} kills, {self.in_request} in the midst of a request\n"
            f"{self.reads} documents noted; answered: {answers}; {self.refused} x 503\n"
            f"{self.taken_over} operations were claimed more than once"
        )


def run(folder: Path, url: str, seed: int, number: int) -> Outcome:
    """Kill replicas in this many rounds; judge it all."""
    chance = random.Random(seed)
    kills = in_request = 0
    with Cluster(folder, url, seed) as cluster:
        cluster.prepare()
        for _ in range(number):
            let_pass(chance.uniform(0.1, 0.6))
            victims = chance.sample([*cluster.replicas.values()], 2 if chance.random() < TWO else 1)
            if chance.random() < IN_REQUEST and (hit := _by_client(cluster, chance)):
                in_request += 1
                victims = [hit, *victims[1:]] if hit not in victims[1:] else [hit]
            for victim in victims:
                if victim.runs:
                    victim.kill()
            for victim in victims:
                assert victim.reap() == -9, victim.said()
            kills += len(victims)
            let_pass(chance.choice(AWAY_SECONDS))
            for victim in victims:
                victim.start(fresh=False)
            for victim in victims:
                victim.wait_until_ready()
            cluster.resolve()
        return _judged(cluster, kills, in_request)


def _judged(cluster: Cluster, kills: int, in_request: int) -> Outcome:
    complaints = cluster.settle(END_SECONDS)
    entries = [entry for each in cluster.journals().values() for entry in each]
    history = cluster.ask("GET", "/v1/history?limit=1000")["operations"]
    return Outcome(
        kills=kills,
        in_request=in_request,
        complaints=complaints,
        answered=Counter(_answers(entries)),
        reads=sum(entry["what"] == "read" for entry in entries),
        refused=sum(entry["what"] == "away" for entry in entries),
        taken_over=sum(operation.get("attempt", 0) > 1 for operation in history),
    )


def promote(folder: Path, seed: int, number: int) -> Outcome:
    """Lose the primary of a synchronous pair this often under load; judge it all."""
    chance = random.Random(seed)
    with Pair(synchronous=True) as pair, Cluster(folder, pair.url, seed) as cluster:
        cluster.prepare()
        for _ in range(number):
            let_pass(chance.uniform(0.5, 1.5))
            pair.lose_primary(chance.uniform(0.0, 0.5))
            pair.add_standby()
            cluster.wait_until_ready()
        return _judged(cluster, kills=number, in_request=0)


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
