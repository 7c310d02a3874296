"""Kills of replicas and relays under load, and losses of their primary, one after another.

A kill takes one or two of three replicas, at once or in mid-request. Where the primary of the
synchronous pair is lost, the standby is promoted, and gets a standby of its own.
"""

import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kills import fleet, judge
from kills.cluster import IN_REQUEST, NAMES, Cluster
from kills.processes import let_pass
from kills.rounds import Outcome, answered, counted
from replicas.pair import Pair

TWO: Final = 0.25
"""How many of the rounds kill two replicas of three."""

IN_REQUEST_SHARE: Final = 0.6
"""How many of the kills a client makes itself, in the midst of its request."""

MANY: Final = 30
"""In so many rounds some kill falls in a request, whatever chance has."""

AWAY_SECONDS: Final = (0.0, 0.0, 0.1, 0.4, 1.5)
"""How long what was killed stays away: the longest lets the others take over its claims."""

MOST_LATE_SECONDS: Final = 0.5
"""The longest wait between the loss of the primary and the promotion of its standby."""

HIT: Final = "kills in the midst of a request"


class Rounds:
    """A cluster under load, and what has happened to it."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._chance = chance

    def begin(self, hosts: Sequence[str] = fleet.HOSTS) -> None:
        """Start everything; let load come."""
        self._cluster.start()
        self._cluster.prepare(hosts)

    def kill(self, names: Sequence[str], hosts: Sequence[str] = ()) -> None:
        """Kill replicas and the relays of hosts at the same moment, and start them again.

        A client that kills in its own request may hit another replica than the first of these.
        """
        cluster, chance = self._cluster, self._chance
        let_pass(chance.uniform(0.1, 0.6))
        if chance.random() < IN_REQUEST_SHARE and (hit := self._in_request(hosts)):
            self.done[HIT] += 1
            names = names if hit in hosts else sorted({hit, *names[1:]})
        victims = [cluster.replicas[name] for name in names]
        relays = [cluster.relays[host] for host in hosts]
        for victim in victims:
            if victim.runs:
                victim.send(signal.SIGKILL)
        for relay in relays:
            assert relay.kill() == -signal.SIGKILL, relay.tail()
        for victim in victims:
            assert victim.ended() == -signal.SIGKILL, victim.tail()
        self.done.update({"replicas killed": len(names), "relays killed": len(hosts)})
        let_pass(chance.choice(AWAY_SECONDS))
        for relay in relays:
            relay.start()
        if len(names) == len(NAMES):
            self.done["relays started without a replica"] += len(hosts)
            for relay in relays:
                relay.wait_until_ready()
        for victim in victims:
            victim.start(fresh=False)
        for each in (*victims, *relays):
            each.wait_until_ready()
        cluster.resolve()

    def promote(self, pair: Pair) -> None:
        """Lose the primary, and promote its standby."""
        let_pass(self._chance.uniform(0.5, 1.5))
        pair.lose_primary(self._chance.uniform(0.0, MOST_LATE_SECONDS))
        pair.add_standby()
        self._cluster.wait_until_ready()
        self.done["promotions"] += 1

    def _in_request(self, hosts: Sequence[str]) -> str:
        """Let a client kill whom it asks, in the midst of a request; return which, or `""`."""
        cluster = self._cluster
        kinds = IN_REQUEST
        if hosts:
            kinds = ("read", "approve")
        elif cluster.relays:  # guests would kill these
            kinds = tuple(kind for kind in kinds if kind not in {"read", "approve"})
        said = cluster.kill_in_request(self._chance, self._chance.choice(kinds), hosts)
        if said is None:
            return ""
        return hosts[0] if hosts else NAMES[said["place"]]

    def judged(self) -> Outcome:
        """Let everything end, and judge it while all replicas run."""
        cluster = self._cluster
        finals = cluster.settle()
        journals = cluster.journals()
        complaints = judge.judge(journals, cluster.runs(), *finals)
        if self.done["replicas killed"] >= MANY and not self.done[HIT]:
            complaints.append("no kill fell in a request")
        entries = [entry for each in journals.values() for entry in each]
        noted = Counter(entry["what"] for entry in entries)
        history = cluster.ask("GET", "/v1/history?limit=1000")["operations"]
        taken_over = sum(operation.get("attempt", 0) > 1 for operation in history)
        return Outcome(
            complaints,
            f"{counted(self.done)}\n"
            f"{noted['read']} documents noted; answered: {counted(answered(entries))}; "
            f"{noted['away']} x 503\n"
            f"{taken_over} operations were claimed more than once",
        )


def run(folder: Path, seed: int, kills: int, promotions: int) -> Outcome:
    """Do all of it and judge.

    Args:
        folder: Empty; holds everything.
        seed: Of every choice.
        kills: In how many rounds replicas are killed.
        promotions: How often the primary is lost, at any time between the others.
    """
    chance = random.Random(seed)
    with Pair(synchronous=True) as pair, Cluster(folder, pair.url, seed) as cluster:
        done = Rounds(cluster, chance)
        done.begin()
        turns = [True] * kills + [False] * promotions
        chance.shuffle(turns)
        for is_kill in turns:
            if is_kill:
                done.kill(chance.sample(NAMES, 2 if chance.random() < TWO else 1))
            else:
                done.promote(pair)
        return done.judged()
