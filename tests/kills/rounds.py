"""Kills, one after another: start the service, let load come, kill it, start it on what that left.

The aims are chosen from a seed. What a kill then meets is real and never quite the same: whether it
fell in a request is counted afterwards, from the clients' journals.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from kills import judge
from kills.cluster import AIM_SECONDS, AT_ANSWER, IN_REQUEST, Cluster
from kills.processes import POLL_SECONDS, let_pass

SCALE: Final = 600.0
"""Fifteen minutes' notice is a second and a half."""

OF_STARTS: Final = 0.18
"""How many of all kills fall in a start, after one that fell in serving."""

STARTS_TAKE: Final = {False: 0.25, True: 2.0}
"""The seconds within which a forked start is killed, and one of a fresh process: it has everything
to import first."""

OF_MIGRATIONS: Final = 40
"""Of so many kills one falls in the first start of all, which makes the store."""

IN_REQUEST_SHARE: Final = 0.75
"""How many of the kills aim at a request."""

STARTS: Final = 5
"""How often a start is tried again while the killed process's lock is still held, as a supervisor
would: a program that it was just about to run holds it until it runs."""

BAD_STORE: Final = 6

MANY: Final = 100
"""From so many kills of a service that serves on, chance does not excuse what they missed."""

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
    fresh: bool
    """Whether its process was started anew, not forked."""


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


def judged(
    kills: list[Kill],
    journals: Mapping[str, list[dict[str, Any]]],
    runs: list[dict[str, Any]],
    final: judge.Final,
) -> Outcome:
    """Judge by what each client and the connector's program wrote down what the service shows."""
    complaints = judge.judge(journals, runs, final)
    serving = [kill for kill in kills if kill.aim != "start"]
    hits = sum(in_request(kill, journals.values()) for kill in serving)
    if len(serving) >= MANY and hits < LEAST_IN_REQUESTS * len(serving):
        complaints.append(f"only {hits} of {len(serving)} kills fell in a request")
    entries = [entry for each in journals.values() for entry in each]
    starts = sum(run["what"] == "start" for run in runs)
    ends = Counter(operation["status"] for operation in final.operations.values())
    return Outcome(
        complaints,
        f"{len(kills)} kills, {sum(kill.fresh for kill in kills)} of fresh processes\n"
        f"{hits} of {len(serving)} that fell while it served fell between a request's first byte "
        f"and its answer\n"
        f"aimed: {counted(Counter(kill.aim for kill in kills))}\n"
        f"answered: {counted(answered(entries))}\n"
        f"operations: {counted(ends)}; the program ran {starts} times",
    )


def answered(entries: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Count what clients were answered."""
    return Counter(f"{e['kind']} {e['status']}" for e in entries if e["what"] == "answered")


def counted(found: Mapping[str, int]) -> str:
    """Return counts as a person reads them."""
    return ", ".join(f"{number} x {what}" for what, number in sorted(found.items()))


class Rounds:
    """The service, its clients, and what has happened to them.

    Args:
        folder: Empty; holds everything.
        seed: Of every choice.
        broken: What is broken in the service on purpose, `""` for nothing.
    """

    def __init__(self, folder: Path, seed: int, broken: str = "") -> None:
        self.kills: list[Kill] = []
        self._chance = random.Random(seed)
        self.cluster = Cluster(
            folder, "", seed, ("service",), checked=False, scale=SCALE, broken=broken
        )
        (self._service,) = self.cluster.replicas.values()

    def prepare(self, *, fresh: bool, migrations: int) -> None:
        """Start the service once, give it a fleet, and let the clients begin.

        Args:
            fresh: Whether the starts that are killed are started anew, not forked.
            migrations: How many of the first starts are killed, which make the store.
        """
        for _ in range(migrations):
            self._kill_start(fresh=fresh)
        self._start(fresh=True)
        self.cluster.prepare()

    def kill_once(self, *, fresh: bool) -> None:
        """Serve and kill; the next start finds what that left.

        Args:
            fresh: Whether the process that is killed next time is started anew, not forked.
        """
        chance = self._chance
        let_pass(chance.uniform(0.03, 0.25))
        if chance.random() < IN_REQUEST_SHARE:
            aim = chance.choice(IN_REQUEST)
            before, after = self._by_client(aim)
        else:
            aim = chance.choice(list(Phase))
            before, after = self._at_phase(aim)
        self.kills.append(Kill(before, after, aim, self._fresh))
        status = self._service.ended()
        assert status == -9, f"the service ended by itself: {status}\n{self._service.tail()}"
        while chance.random() < OF_STARTS:
            self._kill_start(fresh=fresh)
        self._start(fresh=fresh)

    def stop(self) -> None:
        """Have the service end in order."""
        assert self._service.stop() == 0, self._service.tail()

    @property
    def fresh(self) -> int:
        """How many fresh processes were killed, with the one that runs."""
        return sum(kill.fresh for kill in self.kills) + self._fresh

    def _start(self, *, fresh: bool) -> None:
        self._fresh = fresh
        for _ in range(STARTS):
            self._service.start(fresh=fresh)
            try:
                self._service.wait_until_ready()
            except AssertionError:
                if self._service.runs or self._service.ended() != BAD_STORE:
                    raise
            else:
                return
        raise AssertionError(self._service.tail())

    def _kill_start(self, *, fresh: bool) -> None:
        """Start, and kill that at any moment."""
        self._service.start(fresh=fresh)
        let_pass(self._chance.uniform(0, STARTS_TAKE[fresh]))
        before, after = self._now()
        status = self._service.ended()
        if status != BAD_STORE:  # it met the lock of the killed process
            assert status == -9, f"a start ended by itself: {status}\n{self._service.tail()}"
            self.kills.append(Kill(before, after, "start", fresh))

    def _by_client(self, kind: str, delay: float | None = None) -> tuple[float, float]:
        """Let a client kill within its next request of this kind."""
        if said := self.cluster.kill_in_request(self._chance, kind, delay=delay):
            before, after = said["killed"]
            return before, after
        return self._now()

    def _at_phase(self, phase: Phase) -> tuple[float, float]:
        """Kill when something tells that an act has come to this phase, or soon will."""
        if phase is Phase.BEFORE_CLAIM:  # an approval's answer follows the commit that starts it
            return self._by_client("approve", AT_ANSWER)
        log, sign, span = SIGNS[phase]
        self._until(self._service.log if log == "log" else self.cluster.runs_path, sign)
        delay = self._chance.choice([0.0, 0.0, 0.0005, 0.001, 0.002])
        if delay := delay + self._chance.uniform(*span):
            let_pass(delay)
        return self._now()

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

    def _now(self) -> tuple[float, float]:
        before = time.time()
        self._service.send(signal.SIGKILL)
        return before, time.time()


def run(folder: Path, seed: int, kills: int, fresh: int, broken: str = "") -> Outcome:
    """Do all of it and judge.

    Args:
        folder: Empty; holds everything.
        seed: Of every choice.
        kills: How many in all, at least.
        fresh: How many of them hit a process that was started anew, not forked.
        broken: What is broken in the service on purpose.
    """
    rounds = Rounds(folder, seed, broken)
    cluster = rounds.cluster
    with cluster:
        rounds.prepare(fresh=kills <= fresh, migrations=-(-kills // OF_MIGRATIONS))
        while len(rounds.kills) < kills:
            rounds.kill_once(fresh=rounds.fresh < fresh)
        (final,) = cluster.settle()
        rounds.stop()
        return judged(rounds.kills, cluster.journals(), cluster.runs(), final)
