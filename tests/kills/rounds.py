"""Kills, one after another: let load come, kill, start it on what that left.

What is killed is one service, one or several of its replicas, or the relays of hosts. The aims are
chosen from a seed. What a kill then meets is real and never quite the same: whether it fell in a
request is counted afterwards, from the clients' journals.
"""

import random
import signal
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from forewarn.control.outbox import DIFFERS
from kills import fleet, judge
from kills.cluster import AIM_SECONDS, AT_ANSWER, IN_REQUEST, Cluster
from kills.processes import POLL_SECONDS, Service, let_pass, release

SCALE: Final = 600.0
"""Fifteen minutes' notice is a second and a half."""

LOAD_SECONDS: Final = (0.03, 0.3)
"""How long load comes before a kill."""

AWAY_SECONDS: Final = (0.0, 0.0, 0.1, 0.4, 1.5)
"""How long what was killed stays away while others serve: the longest lets them take over its
claims."""

OF_STARTS: Final = 0.18
"""How many of all kills fall in a start, after one that fell in serving."""

STARTS_TAKE: Final = {False: 0.25, True: 2.0}
"""The seconds within which a forked start is killed, and one of a fresh process: it has everything
to import first."""

OF_MIGRATIONS: Final = 40
"""Of so many kills one falls in the first start of all, which makes the store."""

IN_REQUEST_SHARE: Final = 0.7
"""How many of the kills aim at a request."""

STARTS: Final = 5
"""How often a start is tried again while the killed process's lock is still held, as a supervisor
would: a program that it was just about to run holds it until it runs."""

BAD_STORE: Final = 6

SOME: Final = 30
"""Of so many kills one falls in a request, whatever chance has."""

MANY: Final = 100
"""From so many kills on, chance does not excuse that few fell in a request."""

LEAST_IN_REQUESTS: Final = 0.25
"""The share of many kills that must fall in a request."""


class Phase(StrEnum):
    """Of an act, from the instant at which its operation is Started: an aim of kills."""

    BEFORE_CLAIM = "before claim"
    BEGUN = "claimed and begun"
    RUNNING = "program running"
    UNRECORDED = "finished, not recorded"
    RETURNING = "recorded, machines not back"
    RECORDED = "recorded"


SIGNS: Final = {
    Phase.BEGUN: ("log", b'"status": "Started"', (0.006, 0.02)),
    Phase.RUNNING: ("runs", b'"what": "start"', (0.0, 0.03)),
    Phase.UNRECORDED: ("runs", b'"what": "end"', (0.0, 0.0)),
    Phase.RETURNING: ("log", b'"status": "Returning"', (0.0, 0.0)),
    Phase.RECORDED: ("log", b'"status": "Completed"', (0.0, 0.0)),
}
"""What tells that an act has come to a phase, or soon will: in the service's log, or the program's,
and the seconds, from and to, that the kill waits after it."""


class Kill(NamedTuple):
    """One SIGKILL, by the machine's time just before it was sent and just after."""

    before: float
    after: float
    aim: str


def in_request(kill: Kill, journals: Iterable[Iterable[Mapping[str, Any]]]) -> bool:
    """Tell whether a request had begun by this kill and was never answered because of it.

    Args:
        kill: Which.
        journals: What the clients wrote down.
    """
    return any(
        entry["what"] == "unanswered" and entry["first"] <= kill.before <= entry["at"]
        for each in journals
        for entry in each
    )


class Outcome(NamedTuple):
    """What rounds of kills came to."""

    complaints: list[str]
    report: str
    """The counts, for people."""


def answered(entries: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Count what clients were answered."""
    return Counter(f"{e['kind']} {e['status']}" for e in entries if e["what"] == "answered")


def counted(found: Mapping[str, int]) -> str:
    """Return counts as a person reads them."""
    return ", ".join(f"{number} x {what}" for what, number in sorted(found.items()))


class Rounds:
    """A cluster under load, and what has happened to it."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.kills: list[Kill] = []
        self.done: Counter[str] = Counter()
        """What was done beside the kills, and how often."""
        self._chance = chance

    def begin(self, hosts: Sequence[str] = fleet.HOSTS, *, migrations: int = 0) -> None:
        """Start everything on these hosts, and let load come.

        Args:
            hosts: Of the fleet.
            migrations: How many of the first starts are killed, which make the store.
        """
        for name in self.cluster.replicas:
            for _ in range(migrations):
                self._kill_start(name)
            self._start(name)
        self.cluster.prepare(hosts)

    def kill(self, names: Sequence[str], hosts: Sequence[str] = ()) -> None:
        """Kill replicas and the relays of hosts at the same moment, and start them again.

        A client that kills in its own request may hit another replica than the first of these.

        Args:
            names: Of replicas.
            hosts: Whose relays are killed.
        """
        cluster, chance = self.cluster, self._chance
        let_pass(chance.uniform(*LOAD_SECONDS))
        aim, said = self._aimed(names, hosts)
        before, after = said["killed"] if said else (time.time(), 0.0)
        if said and not hosts:
            names = sorted({[*cluster.replicas][said["place"]], *names[1:]})
        victims = {name: cluster.replicas[name] for name in names}
        for victim in victims.values():
            if victim.runs:
                victim.send(signal.SIGKILL)
        for host in hosts:
            relay = cluster.relays[host]
            assert relay.kill() == -signal.SIGKILL, relay.tail()
        for victim in victims.values():
            assert victim.ended() == -signal.SIGKILL, victim.tail()
        self.kills.append(Kill(before, after or time.time(), aim))
        self.done.update({"replicas killed": len(names), "relays killed": len(hosts)})
        if len(names) < len(cluster.replicas):
            let_pass(chance.choice(AWAY_SECONDS))
        for host in hosts:
            cluster.relays[host].start()
        if len(names) == len(cluster.replicas):
            self.done["relays started without a replica"] += len(hosts)
            for host in hosts:
                cluster.relays[host].wait_until_ready()
        for name in names:
            while chance.random() < OF_STARTS:
                self._kill_start(name)
            self._start(name)
        for host in hosts:
            cluster.relays[host].wait_until_ready()
        cluster.resolve()

    def _aimed(self, names: Sequence[str], hosts: Sequence[str]) -> tuple[str, Any]:
        """Return at a moment that chance has chosen: its name, and what a client has killed."""
        cluster, chance = self.cluster, self._chance
        kinds: Sequence[str] = IN_REQUEST
        if hosts:
            kinds = ("read", "approve")
        elif cluster.relays:  # guests would kill these
            kinds = [kind for kind in kinds if kind not in {"read", "approve"}]
        if chance.random() < IN_REQUEST_SHARE:
            kind = chance.choice(kinds)
            return kind, cluster.kill_in_request(chance, kind, hosts)
        phase = chance.choice(list(Phase))
        if phase is Phase.BEFORE_CLAIM and "approve" in kinds:
            # An approval's answer follows the commit that starts it.
            return phase, cluster.kill_in_request(chance, "approve", hosts, AT_ANSWER)
        if phase in SIGNS and names:
            self._wait_for(phase, cluster.replicas[names[0]])
        return phase, None

    def _wait_for(self, phase: Phase, service: Service) -> None:
        """Return when something tells that an act has come to a phase, or soon will."""
        log, sign, span = SIGNS[phase]
        self._until(service.log if log == "log" else self.cluster.runs_path, sign)
        delay = self._chance.choice([0.0, 0.0, 0.0005, 0.001, 0.002])
        if delay := delay + self._chance.uniform(*span):
            let_pass(delay)

    def _until(self, log: Path, sign: bytes) -> None:
        """Return when a log has a new line with this, or the aim has waited enough."""
        size = log.stat().st_size if log.exists() else 0
        until = time.monotonic() + AIM_SECONDS
        while time.monotonic() < until:
            if log.exists() and log.stat().st_size > size:
                with log.open("rb") as file:
                    file.seek(size)
                    if sign in file.read():
                        return
            let_pass(POLL_SECONDS / 4)

    def _start(self, name: str) -> None:
        service = self.cluster.replicas[name]
        for _ in range(STARTS):
            service.start()
            try:
                service.wait_until_ready()
            except AssertionError:
                if service.runs or service.ended() != BAD_STORE:
                    raise
            else:
                return
        raise AssertionError(service.tail())

    def _kill_start(self, name: str) -> None:
        """Start, and kill that at any moment."""
        service = self.cluster.replicas[name]
        service.start()
        let_pass(self._chance.uniform(0, STARTS_TAKE[service.fresh]))
        before = time.time()
        status = service.kill()
        if status != BAD_STORE:  # it met the lock of the killed process
            assert status == -signal.SIGKILL, f"a start ended: {status}\n{service.tail()}"
            self.kills.append(Kill(before, time.time(), "start"))

    def judged(self) -> Outcome:
        """Let everything end; judge it by what clients and the program wrote down."""
        cluster = self.cluster
        finals = cluster.settle()
        for replica in cluster.replicas.values():
            assert replica.stop() == 0, replica.tail()
        journals, runs = cluster.journals(), cluster.runs()
        complaints = judge.judge(journals, runs, *finals)
        # Each start reads the state; from then on a replica takes over what the others append.
        for name, replica in cluster.replicas.items():
            if DIFFERS in replica.log.read_text("utf-8"):
                complaints.append(f"{name} has another state than its log's rows came to")
        serving = [kill for kill in self.kills if kill.aim != "start"]
        hits = sum(in_request(kill, journals.values()) for kill in serving)
        least = LEAST_IN_REQUESTS * len(serving) if len(serving) >= MANY else 1
        if len(serving) >= SOME and hits < least:
            complaints.append(f"only {hits} of {len(serving)} kills fell in a request")
        entries = [entry for each in journals.values() for entry in each]
        return Outcome(
            complaints,
            f"{len(self.kills)} kills\n"
            f"{hits} of {len(serving)} that fell while it served fell between a request's first "
            f"byte and its answer\n"
            f"done: {counted(+self.done)}\n"
            f"aimed: {counted(Counter(kill.aim for kill in self.kills))}\n"
            f"answered: {counted(answered(entries))}",
        )


def run(folder: Path, seed: int, kills: int, broken: str = "", *, fresh: bool = False) -> Outcome:
    """Kill one service, and judge.

    Args:
        folder: Empty; holds everything.
        seed: Of every choice.
        kills: How many in all, at least.
        broken: The break of breaks.toml that the service has.
        fresh: Whether its processes are started anew, not forked.
    """
    names, variables = ("service",), {}
    if broken:
        breaks = tomllib.loads(Path(__file__).with_name("breaks.toml").read_text("utf-8"))
        edits = [*breaks["forget"], *breaks[broken]]
        variables = {"service": release(folder / "broken", edits)}
    with Cluster(
        folder, "", seed, names, variables=variables, checked=False, scale=SCALE
    ) as cluster:
        cluster.replicas["service"].fresh |= fresh
        rounds = Rounds(cluster, random.Random(seed))
        rounds.begin(migrations=-(-kills // OF_MIGRATIONS))
        while len(rounds.kills) < kills:
            rounds.kill(names)
        return rounds.judged()
