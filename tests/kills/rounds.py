"""Kills, one after another: start the service, let load come, kill it, see where that fell.

The aims are chosen from a seed. What a kill then meets is real and never quite the same: so what
it met is counted afterwards, from the clients' journals and from what the kill left on disk.
"""

import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kills import journal, judge, phases
from kills.cluster import AIM_SECONDS, Cluster
from kills.judge import Final as LastWord
from kills.phases import Kill, Phase, Start
from kills.processes import POLL_SECONDS, let_pass

SCALE: Final = 600.0
"""Fifteen minutes' notice is a second and a half."""

IN_REQUEST: Final = (
    "read",
    "approve",
    "approve",
    "request",
    "request",
    "cancel",
    "vouch",
    "postpone",
    "hold",
    "release",
    "resume",
    "fleet",
    "history",
)
"""The aims that a client takes itself: it kills in the midst of its own request of that kind."""

OF_STARTS: Final = 0.18
"""How many of all kills fall in a start, after one that fell in serving."""

START_DELAYS: Final = (0.0, 0.0, 0.0, 0.001, 0.003, 0.008)
"""How long after a phase of a start has begun: they take from one to thirty milliseconds."""

START_SECONDS: Final = 10.0
"""How long a start may take to come to a phase: a fresh one has everything to import first."""

OF_MIGRATIONS: Final = 40
"""Of so many kills one falls in the first start of all, which makes the store."""

_AGAIN: Final = [phase for phase in Start if phase is not Start.MIGRATING]

MORE: Final = 15
"""The most kills beyond what was asked for that aim at phases which none has fallen in yet; at
most as many as were asked for."""

IN_REQUEST_SHARE: Final = 0.75
"""How many of the kills aim at a request; at least half must fall in one."""

LEAST_SHARE: Final = 0.65
"""Of the kills so far: where fewer fell in a request, the next comes before a request is whole."""

DELAYS: Final = {
    "read": (0.0, 0.0001, 0.0002),
    "history": (0.0, 0.0005, 0.001, 0.002),
}
"""How long after a request's first byte: less than its answer takes, in seconds."""

AT_ANSWER: Final = 1.0
"""A delay that no answer takes: the kill comes with the answer's first byte."""

DELAYS_OF_WRITES: Final = (0.0, 0.0003, 0.0008, 0.0015, 0.0025, 0.004, AT_ANSWER)
"""What is decided and committed takes milliseconds: before, in the midst, at once after."""

STARTS: Final = 5
"""How often a start is tried again while the killed process's lock is still held, as a supervisor
would: a program that it was just about to run holds it until it runs."""

BAD_STORE: Final = 6

MANY: Final = 100
"""From so many kills of a service that serves on, chance does not excuse what they missed."""

LEAST_IN_REQUESTS: Final = 0.25
"""The share of many kills that must fall in a request: they are aimed until two thirds do."""


class Laps:
    """Where the time of a run goes, for people; nothing is judged by it."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._began = time.monotonic()

    def end(self, lap: str) -> None:
        """End a lap, which may be one of several of its name; the next one begins."""
        now = time.monotonic()
        self._spent[lap] = self._spent.get(lap, 0.0) + now - self._began
        self._began = now

    def __str__(self) -> str:
        return ", ".join(f"{lap} {seconds:.1f} s" for lap, seconds in self._spent.items())


class Outcome:
    """What the rounds came to.

    Args:
        kills: All of them.
        journals: What each client wrote down.
        runs: What the connector's program wrote down.
        final: What the service shows at the end.
        collisions: How many starts met the lock of the killed process.
        laps: Where the time went.
    """

    def __init__(
        self,
        kills: list[Kill],
        journals: Mapping[str, list[dict[str, Any]]],
        runs: list[dict[str, Any]],
        final: LastWord,
        collisions: int,
        laps: Laps,
    ) -> None:
        self.kills = kills
        self.journals = journals
        self.runs = runs
        self.final = final
        self.collisions = collisions
        self.of_starts = [kill for kill in kills if kill.start]
        self.serving = [kill for kill in kills if not kill.start]
        self.in_request = sum(phases.in_request(k, journals.values()) for k in self.serving)
        self.complaints = judge.judge(journals, runs, final)
        aimed = self.in_request >= LEAST_IN_REQUESTS * len(self.serving)
        if len(self.serving) >= MANY and not aimed:
            self.complaints.append(
                f"only {self.in_request} of {len(self.serving)} kills fell in a request"
            )
        laps.end("judge")
        self.laps = laps

    def missed(self) -> list[str]:
        """Return the phases that no kill met: chance has it, and no promise is broken by it."""
        acts = {phase for kill in self.serving for phase in kill.phases}
        starts = {kill.start for kill in self.of_starts}
        return [
            *(f"an act '{phase}'" for phase in Phase if phase not in acts),
            *(f"a start '{phase}'" for phase in Start if phase not in starts),
        ]

    def report(self) -> str:
        """Return the counts, for people."""
        fresh = sum(kill.fresh for kill in self.kills)
        by_phase = Counter(phase for kill in self.serving for phase in kill.phases)
        by_start = Counter(kill.start for kill in self.of_starts)
        answered = Counter(
            f"{entry['kind']} {entry['status']}"
            for entries in self.journals.values()
            for entry in entries
            if entry["what"] == "answered"
        )
        unanswered = sum(
            entry["what"] == "unanswered" for entries in self.journals.values() for entry in entries
        )
        ends = Counter(o["status"] for o in self.final.operations.values())
        starts = sum(run["what"] == "start" for run in self.runs)
        lines = [
            f"{len(self.kills)} kills, {fresh} of fresh processes, the others of forked ones",
            f"{len(self.serving)} fell while it served, {len(self.of_starts)} while it started",
            f"{self.in_request} fell between a request's first byte and its answer",
            *(f"{by_phase[phase]:5} met acts in the phase '{phase}'" for phase in Phase),
            *(f"{by_start[phase]:5} met a start in the phase '{phase}'" for phase in Start),
            "answered: " + ", ".join(f"{n} x {what}" for what, n in sorted(answered.items())),
            f"never answered: {unanswered} requests",
            "operations: "
            + ", ".join(f"{n} {status}" for status, n in sorted(ends.items()))
            + f"; the program ran {starts} times",
        ]
        if self.collisions:
            lines.append(f"{self.collisions} starts found the database still locked, and went on")
        if missed := self.missed():
            lines.append("no kill met " + ", ".join(missed))
        lines.append(f"time: {self.laps}")
        return "\n".join(lines)


class Rounds:
    """The service, its clients, and what has happened to them.

    Args:
        folder: Empty; holds everything.
        seed: Of every choice.
        broken: What is broken in the service on purpose, `""` for nothing.
    """

    def __init__(self, folder: Path, seed: int, broken: str = "") -> None:
        self.kills: list[Kill] = []
        self._folder = folder
        self._chance = random.Random(seed)
        self.cluster = Cluster(
            folder, "", seed, ("service",), checked=False, scale=SCALE, broken=broken
        )
        (self._service,) = self.cluster.replicas.values()
        self._over: set[str] = set()
        self._followers: list[journal.Follower] = []
        self._ran = journal.Follower(self.cluster.runs_path)
        self._runs_so_far: list[dict[str, Any]] = []
        self._hits = 0
        self._served = 0
        self._last: Kill | None = None

    def prepare(self, *, fresh: bool, migrations: int) -> None:
        """Start the service once, give it a fleet, and let the clients begin.

        Args:
            fresh: Whether the starts that are killed are started anew, not forked.
            migrations: How many starts are killed while they make or migrate the store.
        """
        for _ in range(migrations):
            self._kill_start(fresh=fresh, phase=Start.MIGRATING)
        self._start(fresh=True)
        self.cluster.prepare()
        places = [self._folder / f"{name}.log" for name in self.cluster.clients]
        self._followers = [journal.Follower(place) for place in places]

    def kill_once(self, *, fresh: bool, wanted: Phase | None = None) -> None:
        """Serve, kill, and note where that fell; the next start finds what it left.

        Args:
            fresh: Whether the process that is killed next time is started anew, not forked.
            wanted: The phase to aim at; None for whatever chance says.
        """
        chance = self._chance
        in_request = chance.random() < IN_REQUEST_SHARE
        aim = chance.choice(IN_REQUEST) if in_request else chance.choice(list(Phase))
        let_pass(chance.uniform(0.03, 0.25))
        self._count_hit()
        if self._hits < LEAST_SHARE * self._served:
            aim = chance.choice(IN_REQUEST)
            before, after = self._by_client(aim, 0.0, chance.choice([0.0, 0.5]))
        elif isinstance(aim := wanted or aim, Phase):
            before, after = self._at_phase(aim)
        else:
            delay = chance.choice(DELAYS.get(aim, DELAYS_OF_WRITES))
            before, after = self._by_client(aim, delay)
        was_fresh, self._fresh = self._fresh, fresh
        status = self._service.reap()
        assert status == -9, f"the service ended by itself: {status}\n{self._service.said()}"
        left = phases.left_behind(self._service.database, self._folder)
        self._runs_so_far += self._ran.news()
        runs = [run for run in self._runs_so_far if run["at"] <= before]
        found = phases.of_kill(left, self._over, runs)
        self._over = {name for name, one in left.items() if one.status in judge.OVER}
        self._last = Kill(before, after, str(aim), was_fresh, found)
        self._served += 1
        self.kills.append(self._last)
        while chance.random() < OF_STARTS:
            met = {kill.start for kill in self.kills}
            unmet = [phase for phase in _AGAIN if phase not in met]
            self._kill_start(fresh=fresh, phase=chance.choice(unmet or _AGAIN))
        self._start(fresh=fresh)

    def stop(self) -> None:
        """Have the service end in order."""
        assert self._service.stop() == 0, self._service.said()

    def missing(self) -> list[Phase]:
        """Return the phases that no kill has fallen in yet."""
        return [phase for phase in Phase if not any(phase in kill.phases for kill in self.kills)]

    @property
    def fresh(self) -> int:
        """How many fresh processes were killed, with the one that runs."""
        return sum(kill.fresh for kill in self.kills) + self._fresh

    @property
    def collisions(self) -> int:
        """How many starts met the lock of the killed process and were tried again."""
        return self._service.collisions

    def _start(self, *, fresh: bool) -> None:
        self._fresh = fresh
        for _ in range(STARTS):
            self._service.start(fresh=fresh)
            try:
                self._service.wait_until_ready()
            except AssertionError:
                if self._service.runs or self._service.reap() != BAD_STORE:
                    raise
                self._service.collisions += 1
            else:
                return
        raise AssertionError(self._service.said())

    def _kill_start(self, *, fresh: bool, phase: Start) -> None:
        """Start, and kill when that has come to a phase; note the one that it really fell in."""
        self._service.start(fresh=fresh, marked=True)
        pid = self._service.pid
        self._service.wait_until_at(phase, START_SECONDS)
        if delay := self._chance.choice(START_DELAYS):
            let_pass(delay)
        before, after = self._now()
        status = self._service.reap()
        if status == BAD_STORE:
            self._service.collisions += 1
            return
        assert status == -9, f"a start ended by itself: {status}\n{self._service.said()}"
        met = Start(self._service.came_to(pid, before) or Start.OPENING)
        self.kills.append(Kill(before, after, f"start: {phase}", fresh, {}, met))

    def _count_hit(self) -> None:
        """Count the last kill if it fell in a request: its client has noticed by now."""
        news = [follower.news() for follower in self._followers]
        if self._last:
            self._hits += phases.in_request(self._last, news)

    def _by_client(self, kind: str, delay: float, part: float = 1.0) -> tuple[float, float]:
        """Let a client kill within its next request of this kind: see `kill_by_client`."""
        guests = kind in {"read", "approve"}
        able = [name for name in self.cluster.clients if name.startswith("guest") == guests]
        able = self._chance.sample(able, min(2, len(able)))
        if said := self.cluster.kill_by_client(able, kind, delay, part):
            before, after = said["killed"]
            return before, after
        return self._now()

    def _at_phase(self, phase: Phase) -> tuple[float, float]:
        """Kill when something tells that an act has come to this phase, or soon will."""
        delay = self._chance.choice([0.0, 0.0, 0.0005, 0.001, 0.002])
        match phase:
            case Phase.BEFORE_CLAIM:  # an approval's answer follows the commit that starts an act
                return self._by_client("approve", AT_ANSWER)
            case Phase.BEGUN:
                self._until(self._service.log, b'"status": "Started"')
                delay += self._chance.uniform(0.006, 0.02)
            case Phase.RUNNING:
                self._until(self.cluster.runs_path, b'"what": "start"')
                delay += self._chance.uniform(0.0, 0.03)
            case Phase.UNRECORDED:
                self._until(self.cluster.runs_path, b'"what": "end"')
            case Phase.RETURNING:
                self._until(self._service.log, b'"status": "Returning"')
            case Phase.RECORDED:
                self._until(self._service.log, b'"status": "Completed"')
        if delay:
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
        self._service.kill()
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
    laps = Laps()
    rounds = Rounds(folder, seed, broken)
    cluster = rounds.cluster
    with cluster:
        rounds.prepare(fresh=kills <= fresh, migrations=-(-kills // OF_MIGRATIONS))
        laps.end("start")
        while len(rounds.kills) < kills:
            rounds.kill_once(fresh=rounds.fresh < fresh)
        for _ in range(min(MORE, kills)):
            if not rounds.missing():
                break
            rounds.kill_once(fresh=False, wanted=rounds.missing()[0])
        laps.end("kills")
        (final,) = cluster.settle()
        rounds.stop()
        laps.end("settle")
        return Outcome(
            rounds.kills, cluster.journals(), cluster.runs(), final, rounds.collisions, laps
        )
