"""Kills, one after another: start the service, let load come, kill it, see where that fell.

The aims are chosen from a seed. What a kill then meets is real and never quite the same: so what
it met is counted afterwards, from the clients' journals and from what the kill left on disk.
"""

import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final

import patience
from kills import journal, judge, phases
from kills.evidence import Final as LastWord
from kills.evidence import moment
from kills.outcome import Laps, Outcome
from kills.phases import Kill, Phase, Start
from kills.processes import POLL_SECONDS, Service, Told, let_pass

SCALE: Final = 600.0
"""Fifteen minutes' notice is a second and a half."""

MACHINES_OF_SCOPE: Final = 6
SETS: Final = ("web", "data")
SCALE_SETS: Final = {"batch": "Preempt", "jobs": "Terminate"}
"""How machines of each scale set go: one of low priority, and one that is told of deletions."""

MACHINES_OF_SCALE_SET: Final = 3

ALONE: Final = "bastion"
SCOPES: Final = (*SETS, *SCALE_SETS, ALONE)
OPERATORS: Final = ("ann", "bob")
HOSTS: Final = [f"h{number}" for number in range(MACHINES_OF_SCOPE)]
"""One has a machine of each set."""

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

AIM_SECONDS: Final = 0.6
"""How long an aim may wait for its moment; then the kill comes as it comes."""

STARTS: Final = 5
"""How often a start is tried again while the killed process's lock is still held, as a supervisor
would: a program that it was just about to run holds it until it runs."""

BAD_STORE: Final = 6


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
        self._runs = folder / "program.log"
        program = Path(__file__).with_name("program.py")
        command = [sys.executable, "-I", "-S", str(program), str(self._runs)]
        self._service = Service(folder, SCALE, command, broken)
        self._clients: dict[str, Told] = {}
        self._over: set[str] = set()
        self._followers: list[journal.Follower] = []
        self._ran = journal.Follower(self._runs)
        self._runs_so_far: list[dict[str, Any]] = []
        self._hits = 0
        self._served = 0
        self._last: Kill | None = None

    def __enter__(self) -> "Rounds":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            with contextlib.suppress(OSError):
                client.tell(do="end")
        try:
            for client in self._clients.values():
                client.end()
        finally:
            self._service.end()

    def prepare(self, *, fresh: bool, migrations: int) -> None:
        """Start the service once, give it a fleet, and let the clients begin.

        Args:
            fresh: Whether the starts that are killed are started anew, not forked.
            migrations: How many starts are killed while they make or migrate the store.
        """
        for _ in range(migrations):
            self._kill_start(fresh=fresh, phase=Start.MIGRATING)
        self._start(fresh=True)
        self._service.ask("PUT", "/v1/fleet", fleet())
        names = machines()
        for scope in SCOPES:
            mine = [name for name in names if name.startswith(scope)]
            self._client(f"guest-{scope}", "guest", scope=scope, machines=mine, mortal=mortal())
        for name in OPERATORS:
            cast = {"scopes": SCOPES, "machines": names, "hosts": HOSTS, "mortal": mortal()}
            self._client(name, "operator", name=name, revived=scale_sets(), **cast)

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

    def settle(self) -> LastWord:
        """Let everything end, read it all by the two planes, and stop the service."""
        for client in self._clients.values():
            client.tell(do="drain")
        until = time.monotonic() + patience.SECONDS
        while not at_rest(self._service.ask) and time.monotonic() < until:
            let_pass(0.05)
        for client in self._clients.values():
            client.tell(do="end")
        for name, client in self._clients.items():
            while (said := client.hear()) and "ended" not in said:
                pass
            assert said, f"{name} did not end"
        final = last_word(self._service, SCALE)
        assert self._service.stop() == 0, self._service.said()
        return final

    def journals(self) -> dict[str, list[dict[str, Any]]]:
        """Return what each client wrote down."""
        return {name: journal.read(self._folder / f"{name}.log") for name in self._clients}

    def runs(self) -> list[dict[str, Any]]:
        """Return what the connector's program wrote down."""
        return journal.read(self._runs)

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

    def _client(self, client: str, role: str, **cast: Any) -> None:
        guest = role == "guest"
        place = ["127.0.0.1", self._service.port] if guest else str(self._service.socket)
        cast |= {
            "role": role,
            "seed": self._chance.getrandbits(32),
            "places": [place],
            "journal": str(self._folder / f"{client}.log"),
            "pause": [0.005, 0.03] if guest else [0.01, 0.06],
        }
        self._followers.append(journal.Follower(Path(cast["journal"])))
        self._clients[client] = Told("kills.clients", json.dumps(cast))

    def _count_hit(self) -> None:
        """Count the last kill if it fell in a request: its client has noticed by now."""
        news = [follower.news() for follower in self._followers]
        if self._last:
            self._hits += phases.in_request(self._last, news)

    def _by_client(self, kind: str, delay: float, part: float = 1.0) -> tuple[float, float]:
        """Let a client kill within its next request of this kind.

        Args:
            kind: Of request.
            delay: How long after its first byte, in seconds; an answer that comes before ends it.
            part: How much of the request is sent by then; the rest never is.
        """
        guests = kind in {"read", "approve"}
        able = [name for name in self._clients if name.startswith("guest") == guests]
        self._chance.shuffle(able)
        for name in able:
            client = self._clients[name]
            client.tell(do="kill", kind=kind, pids=[self._service.pid], delay=delay, part=part)
            said = client.hear(AIM_SECONDS / len(able))
            if said is None:
                client.tell(do="drop")
                said = client.hear()
            assert said, f"{name} takes no orders"
            if said["killed"]:
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
                self._until(self._runs, b'"what": "start"')
                delay += self._chance.uniform(0.0, 0.03)
            case Phase.UNRECORDED:
                self._until(self._runs, b'"what": "end"')
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


def last_word(service: Service, scale: float) -> LastWord:
    """Return what the service shows by its two planes."""
    before = time.time()
    live = service.ask("GET", "/v1/events")
    after = time.time()
    return LastWord(
        operations={o["id"]: o for o in _pages(service, "history", "operations")},
        maintenances={m["number"]: m for m in _pages(service, "maintenances", "maintenances")},
        live=live["events"],
        documents={
            scope: service.document(next(n for n in machines() if n.startswith(scope)))
            for scope in SCOPES
        },
        marks={
            name: service.ask("GET", f"/v1/fleet/machines/{name}")["tags"].get("mark", "0")
            for name in (f"own-{operator}" for operator in OPERATORS)
        },
        now=moment(live["now"]),
        read_between=(before, after),
        scale=scale,
    )


def running(ask: Callable[[str, str], Any]) -> set[str]:
    """Return the numbers of the maintenances whose units may still be announced."""
    found = ask("GET", "/v1/maintenances?limit=1000")["maintenances"]
    return {str(each["number"]) for each in found if each["status"] == "running"}


def at_rest(ask: Callable[[str, str], Any]) -> bool:
    """Tell whether no event is live, and none comes by itself."""
    # What runs first: a unit that waits may become an event between the two answers.
    return not running(ask) and not ask("GET", "/v1/events")["events"]


def _pages(service: Service, path: str, name: str) -> Generator[Any]:
    cursor = ""
    while True:
        page = service.ask("GET", f"/v1/{path}?limit=1000&cursor={cursor}")
        yield from page[name]
        cursor = page["next"]
        if not cursor:
            return


def machines() -> list[str]:
    """Return the names of all machines; each begins with its scope's, and the first of it stays."""
    named = [f"{name}-{n}" for name in SETS for n in range(MACHINES_OF_SCOPE)]
    return [ALONE, *named, *(f"{s}_{n}" for s in SCALE_SETS for n in range(MACHINES_OF_SCALE_SET))]


def mortal() -> dict[str, str]:
    """Return how machines go that may be preempted or deleted, and are brought back."""
    numbers = range(1, MACHINES_OF_SCALE_SET)
    return {f"{name}_{n}": goes for name, goes in SCALE_SETS.items() for n in numbers}


def scale_sets(hosts: Sequence[str] = HOSTS) -> list[dict[str, Any]]:
    """Return the scale sets, each machine in a domain of its own."""
    return [
        {
            "name": name,
            "update_domains": MACHINES_OF_SCALE_SET,
            **({"priority": "low"} if goes == "Preempt" else {"terminate_notice_minutes": 5}),
            "machines": [
                {"index": n, "update_domain": n, "host": hosts[n % len(hosts)]}
                for n in range(MACHINES_OF_SCALE_SET)
            ],
        }
        for name, goes in SCALE_SETS.items()
    ]


def fleet(hosts: Sequence[str] = HOSTS) -> dict[str, Any]:
    """Return sets of three domains each on shared hosts, and machines that are alone."""
    return {
        "availability_set": [
            {
                "name": scope,
                "update_domains": 3,
                "machines": [
                    {
                        "name": f"{scope}-{n}",
                        "update_domain": n % 3,
                        "host": hosts[n % len(hosts)],
                    }
                    for n in range(MACHINES_OF_SCOPE)
                ],
            }
            for scope in SETS
        ],
        "scale_set": scale_sets(hosts),
        "machine": [
            {"name": ALONE, "host": hosts[0]},
            *({"name": f"own-{operator}"} for operator in OPERATORS),
        ],
    }


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
    with Rounds(folder, seed, broken) as rounds:
        rounds.prepare(fresh=kills <= fresh, migrations=-(-kills // OF_MIGRATIONS))
        laps.end("start")
        while len(rounds.kills) < kills:
            rounds.kill_once(fresh=rounds.fresh < fresh)
        for _ in range(min(MORE, kills)):
            if not rounds.missing():
                break
            rounds.kill_once(fresh=False, wanted=rounds.missing()[0])
        laps.end("kills")
        final = rounds.settle()
        laps.end("settle")
        return Outcome(
            rounds.kills, rounds.journals(), rounds.runs(), final, rounds.collisions, laps
        )
