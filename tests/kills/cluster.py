"""Replicas of the service over one PostgreSQL, and the clients that use them.

The clients, the program and their journals are the kills' own: what a single service promises,
replicas promise too.
"""

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import patience
from kills import journal, program, rounds
from kills.processes import ANSWER_SECONDS, Service, Told, let_pass
from replicas import judge

SCALE: Final = 1.0
"""Replicas go by the database's clock: nothing starts here unless somebody has approved it."""

NAMES: Final = ("r1", "r2", "r3")
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
AWAY: Final = (OSError, AssertionError, TimeoutError)
"""What asking a replica that was killed, or cannot reach its database, may raise."""


class Cluster:
    """Several replicas, a fleet, guests and operators; all of it ends with the `with` block.

    Args:
        folder: Empty; holds everything.
        url: Of the database, which is empty.
        seed: Of every choice that the clients make.
        names: Of the replicas.
        settings: Further ones for all.
        own_settings: Further ones by name.
        paths: URLs by name, of replicas that reach the database by another way.
        variables: Further ones of the environment, by name.
        program: What carries maintenance out, instead of the kills' program; its log is
            `runs_path`, too.
        checked: Whether the program is asked about runs that were lost.
        scale: Of the clock.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        seed: int,
        names: tuple[str, ...] = NAMES,
        settings: str = "",
        own_settings: Mapping[str, str] = NOTHING,
        paths: Mapping[str, str] = NOTHING,
        variables: Mapping[str, Mapping[str, str]] = NOTHING,
        program: Path = Path(program.__file__),
        checked: bool = True,
        scale: float = SCALE,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.runs_path = folder / "program.log"
        command = [sys.executable, "-I", "-S", str(program), str(self.runs_path)]
        self.replicas = {
            name: Service(
                folder / name,
                scale,
                command,
                settings=(
                    f'[store]\nurl = "{paths.get(name, url)}"\n'
                    f'[replica]\nname = "{name}"\n{settings}{own_settings.get(name, "")}'
                ),
                check=[*command, "check"] if checked else [],
                variables=variables.get(name, NOTHING),
            )
            for name in names
        }
        self.seed = seed
        self._clients: dict[str, Told] = {}
        self._journal = journal.Journal(folder / "the test.log")

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            with contextlib.suppress(OSError):
                client.tell(do="end")
        for part in (*self._clients.values(), *self.replicas.values()):
            with contextlib.suppress(AssertionError):
                part.end()

    def start(self, *, fresh: bool = False) -> None:
        """Start all, one after another: the first makes the schema."""
        for replica in self.replicas.values():
            replica.start(fresh=fresh)
            replica.wait_until_ready()

    def prepare(self, hosts: Sequence[str] = rounds.HOSTS) -> None:
        """Give them a fleet on these hosts, and let the clients begin."""
        self.start()
        self.ask("PUT", "/v1/fleet", rounds.fleet(hosts))
        self.begin_guests()
        names, mortal = rounds.machines(), rounds.mortal()
        sockets = [str(each.socket) for each in self.replicas.values()]
        for at, name in enumerate(rounds.OPERATORS):
            cast = {
                "name": name,
                "revived": rounds.scale_sets(hosts),
                "scopes": rounds.SCOPES,
                "machines": names,
                "hosts": hosts,
                "mortal": mortal,
            }
            self.begin_client(name, "operator", sockets, at, **cast)

    def begin_guests(self) -> None:
        """Let a guest of each scope begin, each with a replica of its own."""
        places: list[Any] = [["127.0.0.1", each.port] for each in self.replicas.values()]
        for at, scope in enumerate(rounds.SCOPES):
            mine = [name for name in rounds.machines() if name.startswith(scope)]
            cast = {"scope": scope, "machines": mine, "mortal": rounds.mortal()}
            self.begin_client(f"guest-{scope}", "guest", places, at, **cast)

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
        deadline = time.monotonic() + patience.SECONDS
        for replica in self.replicas.values():
            while True:
                try:
                    replica.ask("GET", "/readyz")
                except AWAY:
                    assert time.monotonic() < deadline, replica.said()
                    let_pass(0.05)
                else:
                    break

    def pids(self) -> list[int]:
        """Return the replicas' process ids, in the order of the clients' places."""
        return [replica.pid for replica in self.replicas.values()]

    def resolve(self) -> int:
        """Tell the result of operations whose outcome is unknown, as the program's log has it.

        A run that failed is such: a check command says "done", "not done", or nothing.
        """
        told = 0
        for alert in self.ask("GET", "/v1/alerts")["items"]:
            if alert["kind"] != "unknown":
                continue
            runs = [
                run for run in journal.read(self.runs_path) if run["operation"] == alert["about"]
            ]
            ends = [run["status"] for run in runs if run["what"] == "end"]
            verdict = "repeat" if not ends else "failed" if any(ends) else "succeeded"
            with contextlib.suppress(AssertionError):  # it has ended meanwhile
                body = {"references": [alert["about"]], "verdict": verdict}
                self.ask("POST", "/v1/resolutions", body)
                told += 1
        return told

    def settle(self) -> list[str]:
        """Wait until all is over, and judge it, while all replicas run; return the complaints."""
        for client in self._clients.values():
            client.tell(do="drain")
        deadline = time.monotonic() + patience.SECONDS
        while not rounds.at_rest(self.ask) and time.monotonic() < deadline:
            live = self.ask("GET", "/v1/events")["events"]
            numbers = {event["operation"].partition(".")[0] for event in live}
            self._cancel(numbers | rounds.running(self.ask))
            self._approve([event for event in live if event["status"] == "Scheduled"])
            self.resolve()
            let_pass(0.2)
        for client in self._clients.values():
            client.tell(do="end")
        for name, client in self._clients.items():
            while (said := client.hear()) and "ended" not in said:
                pass
            assert said, f"{name} did not end"
        finals = [rounds.last_word(replica, SCALE) for replica in self.replicas.values()]
        return judge.judge(self.journals(), journal.read(self.runs_path), finals)

    def _cancel(self, maintenances: set[str]) -> None:
        """Cancel what has not started, with the units whose turns are to come.

        Each takes seconds, as a machine has to be back before the next one goes, and proves no more
        than those before.
        """
        for number in maintenances:
            with contextlib.suppress(AssertionError):  # nothing of it is left to cancel
                self.ask("POST", "/v1/cancellations", {"references": [number]})

    def _approve(self, events: list[dict[str, Any]]) -> None:
        """Approve for the guests, and write it down as the clients do."""
        if not events:
            return
        facts = {"kind": "vouch", "events": [event["id"] for event in events]}
        self._journal.write("sends", **facts)
        with contextlib.suppress(AssertionError):  # one of them has ended meanwhile
            references = sorted({event["operation"] for event in events})
            self.ask("POST", "/v1/approvals", {"references": references})

    def journals(self) -> dict[str, list[dict[str, Any]]]:
        """Return what each client wrote down."""
        names = [*self._clients, "the test"]
        return {name: journal.read(self.folder / f"{name}.log") for name in names}

    def order(self, client: str, **order: Any) -> Any:
        """Give a client an order, and return its answer; None if there is none in time."""
        self._clients[client].tell(**order)
        # What it is in the midst of may take a while; only an aim is not worth a longer wait.
        kills = order["do"] == "kill"
        return self._clients[client].hear(rounds.AIM_SECONDS if kills else ANSWER_SECONDS)

    @property
    def clients(self) -> list[str]:
        """The names of the clients."""
        return list(self._clients)

    def begin_client(self, client: str, role: str, places: list[Any], at: int, **cast: Any) -> None:
        """Let a client begin at one of several places."""
        cast |= {
            "role": role,
            "seed": self.seed * 100 + len(self._clients),
            "places": places,
            "at": at % len(places),
            "journal": str(self.folder / f"{client}.log"),
            "pause": [0.005, 0.03] if role == "guest" else [0.01, 0.06],
        }
        self._clients[client] = Told("kills.clients", json.dumps(cast))
