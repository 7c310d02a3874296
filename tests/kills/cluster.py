"""The service under load: one process or several replicas, and the clients that use them."""

import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import patience
from kills import fleet, journal, program
from kills.judge import Final as LastWord
from kills.judge import moment
from kills.processes import Service, Told, let_pass

REAL: Final = 1.0
"""The scale of replicas, which go by the database's clock: nothing starts here unless somebody
has approved it."""

NAMES: Final = ("r1", "r2", "r3")
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
AWAY: Final = (OSError, AssertionError, TimeoutError)
"""What asking a replica that was killed, or cannot reach its database, may raise."""

AIM_SECONDS: Final = 0.6
"""How long an aim may wait for its moment; then the kill comes as it comes."""

IN_REQUEST: Final = (
    *("read", "approve", "approve", "request", "request", "cancel", "vouch", "postpone"),
    *("hold", "release", "fleet", "history"),
)
"""The aims that a client takes itself: it kills in the midst of its own request of that kind."""

AT_ANSWER: Final = 1.0
"""A delay that no answer takes: the kill comes with the answer's first byte."""

DELAYS: Final = {"read": (0.0, 0.0001, 0.0002), "history": (0.0, 0.0005, 0.001, 0.002)}
"""How long after a request's first byte: less than its answer takes, in seconds."""

DELAYS_OF_WRITES: Final = (0.0, 0.0003, 0.0008, 0.0015, 0.0025, 0.004, AT_ANSWER, AT_ANSWER)
"""What is decided and committed takes milliseconds: before, in the midst, at once after."""

SQLITE: Final = '[store]\npath = "forewarn.db"\n'


class Cluster:
    """Several replicas, a fleet, guests and operators; all of it ends with the `with` block.

    Args:
        folder: Empty; holds everything.
        url: Of the database, which is empty; `""` for one process that has SQLite.
        seed: Of every choice that the clients make.
        names: Of the replicas.
        own_settings: Further ones by name.
        paths: URLs by name, of replicas that reach the database by another way.
        variables: Further ones of the environment, by name.
        held: Whether the program works for as long as there is a file `hold`, and never fails.
        checked: Whether the program is asked about runs that were lost.
        scale: Of the clock.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        seed: int,
        names: tuple[str, ...] = NAMES,
        own_settings: Mapping[str, str] = NOTHING,
        paths: Mapping[str, str] = NOTHING,
        variables: Mapping[str, Mapping[str, str]] = NOTHING,
        *,
        held: bool = False,
        checked: bool = True,
        scale: float = REAL,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.runs_path = folder / "program.log"
        self.hold = folder / "program.hold"
        self.relays: dict[str, Any] = {}
        """Relays by their hosts, which are killed as well."""
        own = [sys.executable, "-I", "-S", program.__file__, str(self.runs_path)]
        command = [*own, "held"] if held else own
        self.replicas = {
            name: Service(
                folder / name,
                scale,
                command,
                settings=(
                    f'[store]\nurl = "{paths.get(name, url)}"\n'
                    f'[replica]\nname = "{name}"\n{own_settings.get(name, "")}'
                    if url
                    else SQLITE
                ),
                check=[*command, "check"] if checked else [],
                variables=variables.get(name, NOTHING),
            )
            for name in names
        }
        self._seed = seed
        self._scale = scale
        self._checked = checked
        self.clients: dict[str, Told] = {}
        self._journal = journal.Journal(folder / "the test.log")

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._tell_clients(do="end")
        for client in self.clients.values():
            with contextlib.suppress(AssertionError):
                client.end()
        for killed in (*self.relays.values(), *self.replicas.values()):
            killed.kill()

    def _tell_clients(self, **order: Any) -> None:
        for client in self.clients.values():
            with contextlib.suppress(OSError):
                client.tell(**order)

    def prepare(self, hosts: Sequence[str] = fleet.HOSTS) -> None:
        """Give them a fleet on these hosts, and let the clients begin."""
        self.ask("PUT", "/v1/fleet", fleet.whole(hosts))
        self.begin_guests()
        sockets = [str(each.socket) for each in self.replicas.values()]
        for at, name in enumerate(fleet.OPERATORS):
            cast = {
                "name": name,
                "revived": fleet.whole(hosts)["scale_set"],
                "scopes": fleet.SCOPES,
                "machines": fleet.machines(),
                "hosts": hosts,
            }
            self.begin_client(name, "operator", sockets, at, **cast)

    def begin_guests(self) -> None:
        """Let a guest of each scope begin, each with a replica of its own."""
        places: list[Any] = [["127.0.0.1", each.port] for each in self.replicas.values()]
        for at, scope in enumerate(fleet.SCOPES):
            mine = [name for name in fleet.machines() if name.startswith(scope)]
            self.begin_client(f"guest-{scope}", "guest", places, at, scope=scope, machines=mine)

    def begin_client(self, client: str, role: str, places: list[Any], at: int, **cast: Any) -> None:
        """Let a client begin at one of several places."""
        cast |= {
            "role": role,
            "mortal": fleet.mortal(),
            "seed": self._seed * 100 + len(self.clients),
            "places": places,
            "at": at % len(places),
            "journal": str(self.folder / f"{client}.log"),
            "pause": [0.005, 0.03] if role == "guest" else [0.01, 0.06],
        }
        log = self.folder / f"{client}.err"
        self.clients[client] = Told(log, "kills.clients", json.dumps(cast))

    def pids_for(self, client: str) -> list[int]:
        """Return whom a client kills, in the order of its places."""
        host = client.rpartition(" at ")[2]
        if host in self.relays:
            return [self.relays[host].pid]
        return [replica.pid for replica in self.replicas.values()]

    def kill_in_request(
        self,
        chance: random.Random,
        kind: str,
        hosts: Sequence[str] = (),
        delay: float | None = None,
    ) -> dict[str, Any] | None:
        """Let a client kill whom it asks within its next request of this kind.

        Args:
            chance: What chooses the client.
            kind: Of request; guests alone read and approve.
            hosts: Whose guests may, where they ask relays.
            delay: How long after its first byte, in seconds; an answer that comes before ends it.

        Returns:
            When and at which of its places it killed; None if it did not.
        """
        guests = kind in {"read", "approve"}
        able = [
            name
            for name in self.clients
            if name.startswith("guest") == guests
            and (not hosts or name.rpartition(" at ")[2] in hosts)
        ]
        if delay is None:
            delay = chance.choice(DELAYS.get(kind, DELAYS_OF_WRITES))
        # One in sixteen is cut off: half of it is sent, and the rest never is.
        part = chance.choice([1.0] * 15 + [0.5])
        for name in chance.sample(able, min(2, len(able))):
            client = self.clients[name]
            client.tell(do="kill", kind=kind, pids=self.pids_for(name), delay=delay, part=part)
            said = client.hear(AIM_SECONDS / 2)
            if said is None:
                client.tell(do="drop")
                said = client.hear()
            assert said, f"{name} takes no orders"
            if said["killed"]:
                return dict(said)
        return None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the operator plane of the first replica that answers."""
        trouble: list[object] = []
        for replica in self.replicas.values():
            try:
                return replica.ask(method, path, body)
            except AWAY as error:
                trouble.append(error)
        raise AssertionError(trouble)

    def wait_until_ready(self) -> None:
        """Return when every replica says that it can do all its work."""
        for replica in self.replicas.values():
            patience.until(lambda: is_ready(replica), replica.tail)  # noqa: B023 - called at once

    def resolve(self) -> None:
        """Tell the result of operations whose outcome is unknown, as the program's log has it.

        A run that failed is such: a check command says "done", "not done", or nothing. Where there
        is no such command, a service knows all results of its own runs.
        """
        if not self._checked:
            return
        for alert in self.ask("GET", "/v1/alerts")["items"]:
            if alert["kind"] != "unknown":
                continue
            runs = [run for run in self.runs() if run["operation"] == alert["about"]]
            ends = [run["status"] for run in runs if run["what"] == "end"]
            verdict = "repeat" if not ends else "failed" if any(ends) else "succeeded"
            with contextlib.suppress(AssertionError):  # it has ended meanwhile
                body = {"references": [alert["about"]], "verdict": verdict}
                self.ask("POST", "/v1/resolutions", body)

    def settle(self) -> list[LastWord]:
        """Wait until all is over and the clients have ended; return what each replica shows."""
        self._tell_clients(do="drain")
        until = time.monotonic() + patience.SECONDS
        while not self.at_rest() and time.monotonic() < until:
            if self._scale == REAL:
                self._hurry()
            let_pass(0.1)
        self._tell_clients(do="end")
        for name, client in self.clients.items():
            while (said := client.hear()) and "ended" not in said:
                pass
            assert said, f"{name} did not end"
        return [last_word(replica, self._scale) for replica in self.replicas.values()]

    def at_rest(self) -> bool:
        """Tell whether no event is live, and none comes by itself."""
        # What runs first: a unit that waits may become an event between the two answers.
        return not self._running() and not self.ask("GET", "/v1/events")["events"]

    def _running(self) -> set[str]:
        """Return the numbers of the maintenances whose units may still be announced."""
        found = self.ask("GET", "/v1/maintenances?limit=1000")["maintenances"]
        return {str(each["number"]) for each in found if each["status"] == "running"}

    def _hurry(self) -> None:
        """Cancel what has not started, with the units to come, and approve for the guests.

        Each unit takes seconds, as a machine has to be back before the next one goes, and proves no
        more than those before.
        """
        live = self.ask("GET", "/v1/events")["events"]
        for number in {event["operation"].partition(".")[0] for event in live} | self._running():
            with contextlib.suppress(AssertionError):  # nothing of it is left to cancel
                self.ask("POST", "/v1/cancellations", {"references": [number]})
        if events := [event for event in live if event["status"] == "Scheduled"]:
            self._journal.write("sends", kind="vouch", events=[event["id"] for event in events])
            with contextlib.suppress(AssertionError):  # one of them has ended meanwhile
                references = sorted({event["operation"] for event in events})
                self.ask("POST", "/v1/approvals", {"references": references})
        self.resolve()

    def journals(self) -> dict[str, list[dict[str, Any]]]:
        """Return what each client wrote down."""
        names = [*self.clients, "the test"]
        return {name: journal.read(self.folder / f"{name}.log") for name in names}

    def runs(self) -> list[dict[str, Any]]:
        """Return what the connector's program wrote down."""
        return journal.read(self.runs_path)


def is_ready(replica: Service) -> bool:
    """Tell whether a replica says that it can do all its work."""
    try:
        return bool(replica.ask("GET", "/readyz"))
    except AWAY:
        return False


def last_word(service: Service, scale: float) -> LastWord:
    """Return what the service shows by its two planes."""
    before = time.time()
    live = service.ask("GET", "/v1/events")
    return LastWord(
        operations={o["id"]: o for o in _pages(service.ask, "history", "operations")},
        maintenances={m["number"]: m for m in _pages(service.ask, "maintenances", "maintenances")},
        live=live["events"],
        documents={
            scope: service.document(next(n for n in fleet.machines() if n.startswith(scope)))
            for scope in fleet.SCOPES
        },
        marks={
            name: service.ask("GET", f"/v1/fleet/machines/{name}")["tags"].get("mark", "0")
            for name in (f"own-{operator}" for operator in fleet.OPERATORS)
        },
        now=moment(live["now"]),
        read_from=before,
        scale=scale,
    )


def _pages(ask: Callable[[str, str], Any], path: str, name: str) -> Generator[Any]:
    cursor = ""
    while True:
        page = ask("GET", f"/v1/{path}?limit=1000&cursor={cursor}")
        yield from page[name]
        cursor = page["next"]
        if not cursor:
            return
