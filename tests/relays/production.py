"""Three replicas on PostgreSQL, hosts with a relay each, and machines that poll: all processes.

Each host is a network namespace (`relays.network`), and so is each machine. A machine polls ten
times a second by a new connection, on a thread in its namespace, and notes all that it reads; what
they wrote down is what the promises are judged by.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

import web
from end_to_end.running import Running
from postgres import Postgres
from relays import network, process
from relays.process import Relay, until
from trace_judge import Trace

NAMES: Final = ("r1", "r2", "r3")
FIRST_PORT: Final = 8173
"""Of the first replica's relay plane; the others follow."""

SETTINGS: Final = """
[store]
url = "{url}"
[replica]
name = "{name}"
[relay]
listen = "{address}:{port}"
tls_certificate = "{certificate}"
tls_key = "{key}"
[connector.simulated]
freeze_seconds = 3
redeploy_seconds = 3
reboot_seconds = 1
host_reboot_seconds = 3
[log]
format = "json"
"""

RELAY: Final = """
[upstream]
urls = [{upstream}]
token_file = "{token}"
ca_file = "{certificate}"
[state]
folder = "{folder}"
[[guest.listener]]
address = "169.254.169.254"
port = 80
[log]
format = "json"
"""

EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
POLL_SECONDS: Final = 0.1
LOST: Final = 0
"""In the place of a status: there was no answer."""


class Poll(NamedTuple):
    """What a machine was answered."""

    began: float
    at: float
    """Both by `time.time()`."""
    status: int
    """LOST where there was no answer."""
    document: dict[str, Any]
    age: int
    """Of the answer, in seconds, as its header says; 0 without one."""
    error: str


class Machine:
    """One machine that polls; its fleet name is its name."""

    def __init__(self, guest: network.Guest) -> None:
        self.name = guest.name
        self.address = guest.address
        self.polls: list[Poll] = []
        self.approvals: dict[str, list[float]] = {}
        """When it sent approvals of each event."""
        self._guest = guest
        self._ends = threading.Event()
        self.polling = threading.Lock()
        """Held while a poll is under way."""
        self._thread = network.on_thread_in(guest, self._run)

    def last(self) -> Poll | None:
        """Return the last answer with a document."""
        return next((poll for poll in reversed(self.polls) if poll.status == 200), None)

    def events(self) -> list[dict[str, Any]]:
        """Return the events that it read last."""
        poll = self.last()
        return list(poll.document["Events"]) if poll else []

    def failed(self, since: float = 0.0) -> list[Poll]:
        """Return the polls that did not bring a document."""
        return [poll for poll in self.polls if poll.began >= since and poll.status != 200]

    def approve(self, event_id: str) -> int:
        """Approve an event, and return the status; LOST where there was no answer."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        self.approvals.setdefault(event_id, []).append(time.time())
        answers: list[int] = []

        def post() -> None:
            answers.append(_ask("POST", body)[0])

        network.on_thread_in(self._guest, post).join()
        return answers[0]

    def close(self) -> None:
        """Poll no more."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(POLL_SECONDS):
            with self.polling:
                began = time.time()
                status, body, age, error = _ask("GET", None)
                document = json.loads(body) if status == 200 else {}
                self.polls.append(Poll(began, time.time(), status, document, age, error))


def _ask(method: str, body: str | None) -> tuple[int, str, int, str]:
    """Return the status, the body, its age, and what is wrong."""
    try:
        told = web.ask(80, EVENTS, method, body, to=network.ENDPOINT)
    except (OSError, HTTPException) as error:
        return LOST, "", 0, repr(error)
    return *told[:2], int(told.headers.get("age", "0")), "" if told.status == 200 else told.body


def judge(machines: Iterable[Machine], scopes: dict[str, str]) -> list[str]:
    """Return what no guest may see, a sentence each: see `trace_judge.Trace`.

    Args:
        machines: All of them.
        scopes: The scope of each by its name.
    """
    trace = Trace()
    machines = tuple(machines)
    approved: dict[str, float] = {}
    for machine in machines:
        for event_id, times in machine.approvals.items():
            approved[event_id] = min([*times, approved.get(event_id, times[0])])
    for machine in machines:
        not_before: dict[str, datetime] = {}
        for poll in machine.polls:
            if poll.status != 200:
                continue
            events = poll.document["Events"]
            incarnation = poll.document["DocumentIncarnation"]
            trace.read(machine.name, scopes[machine.name], incarnation, str(events))
            for event in events:
                name = event["EventId"]
                if event["EventStatus"] == "Scheduled":
                    not_before[name] = parsedate_to_datetime(event["NotBefore"])
                elif name in not_before:
                    at = datetime.fromtimestamp(poll.at, UTC)
                    sent = approved.get(name, poll.at) < poll.at
                    told = not_before.pop(name)
                    trace.started(f"{name} at {machine.name}", at, told, approved=sent)
    return trace.complaints


class Production:
    """All of it; ends with `made`."""

    def __init__(
        self, folder: Path, url: str, site: network.Site, running: contextlib.ExitStack
    ) -> None:
        self.folder = folder
        self.site = site
        self.machines: dict[str, Machine] = {}
        self.relays: dict[str, Relay] = {}
        self._running = running
        self.certificate, self._key = process.certify(folder, network.SERVICE)
        self.replicas = {
            name: self._replica(number, name, url) for number, name in enumerate(NAMES)
        }
        for replica in self.replicas.values():
            replica.start()
            running.callback(_end, replica)

    def _replica(self, number: int, name: str, url: str) -> Running:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        # Simulated hosts are kept there.
        made = Running(folder, environment={"STATE_DIRECTORY": str(folder)})
        made.settings.write_text(
            SETTINGS.format(
                url=url,
                name=name,
                address=network.SERVICE,
                port=FIRST_PORT + number,
                certificate=self.certificate,
                key=self._key,
            )
            + f'[operator]\nsocket = "{made.socket}"\n'
            f"[[guest.listener]]\nport = {made.guest_port}\n"
        )
        return made

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the operators' plane of the first replica."""
        answer = self.replicas[NAMES[0]].operator.ask(method, path, body)
        assert answer.status < 300, (answer.status, answer.body)
        return json.loads(answer.body)

    def apply(self, machines: Mapping[str, str]) -> None:
        """Make hosts and machines, each a scope of its own, and tell the service of them.

        Args:
            machines: The host of each machine.
        """
        for host in machines.values():
            if host not in self.site.hosts:
                self.site.host(host)
        plugged = [self.site.guest(name, host) for name, host in machines.items()]
        fleet = [
            {"name": one.name, "host": machines[one.name], "address": one.address}
            for one in plugged
        ]
        self.ask("PUT", "/v1/fleet", {"machine": fleet})

    def token(self, host: str) -> Path:
        """Have a token made for a host's relay."""
        path = self.folder / f"{host}.{len(list(self.folder.glob('*.token')))}.token"
        replica = self.replicas[NAMES[0]]
        called = replica.call("relay", "token", host, "--output", str(path))
        assert called.returncode == 0, called.stderr
        return path

    def relay(self, host: str, token: Path | None = None, *, waits: bool = True) -> Relay:
        """Start the relay of a host, with a token of its own unless another is given."""
        upstream = ", ".join(
            f'"https://{network.SERVICE}:{FIRST_PORT + number}"' for number in range(len(NAMES))
        )
        folder = self.folder / f"relay-{host}-{len(self.relays)}"
        settings = RELAY.format(
            upstream=upstream,
            token=token or self.token(host),
            certificate=self.certificate,
            folder=folder,
        )
        made = self.relays[host] = Relay(folder, host, settings, self.site.hosts[host].within())
        made.start()
        self._running.callback(made.end)
        if waits:
            made.wait_until_ready()
        return made

    def poll(self, *names: str) -> list[Machine]:
        """Let machines poll, and return them when each has read its document."""
        made = [self.begin_polls(name) for name in names]
        for machine in made:
            until(machine.last, lambda: (machine.name, machine.polls[-3:]))  # noqa: B023 - at once
        return made

    def begin_polls(self, name: str) -> Machine:
        """Let a machine poll, whatever it reads."""
        made = self.machines[name] = Machine(self.site.guests[name])
        self._running.callback(made.close)
        return made

    def request(self, machine: str, event_type: str = "Reboot") -> dict[str, Any]:
        """Request maintenance of a machine, and return its operation."""
        body = {"machines": [machine], "event_type": event_type}
        (operation,) = self.ask("POST", "/v1/maintenances", body)["operations"]
        return dict(operation)

    def vouch(self, machine: Machine, reference: str) -> None:
        """Approve for a machine, as an operator."""
        for event in machine.events():
            machine.approvals.setdefault(event["EventId"], []).append(time.time())
        self.ask("POST", "/v1/approvals", {"references": [reference]})

    def event(self, machine: str, status: str = "Scheduled") -> dict[str, Any]:
        """Return the event that a machine reads, once it is so."""
        polls = self.machines[machine]

        def read() -> dict[str, Any] | None:
            return next((e for e in polls.events() if e["EventStatus"] == status), None)

        return until(read, lambda: (machine, polls.polls[-3:]))

    def judge(self) -> list[str]:
        """Return what no guest may see; each machine here is a scope."""
        return judge(self.machines.values(), {name: name for name in self.machines})


def _end(replica: Running) -> None:
    with contextlib.suppress(ProcessLookupError):
        replica.stop()


@contextlib.contextmanager
def made(folder: Path) -> Iterator[Production]:
    """Make PostgreSQL and the replicas in a network of their own; end all of it."""
    with contextlib.ExitStack() as running:
        site = running.enter_context(network.made())
        server = Postgres("fsync = off").start()
        running.callback(server.remove)
        url = server.create_database("forewarn")
        os.environ.pop("FOREWARN_OPERATOR", None)
        yield Production(folder, url, site, running)
