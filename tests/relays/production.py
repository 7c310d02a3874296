"""Three replicas on PostgreSQL, hosts with a relay each, and machines that poll: all processes.

Each host is a network namespace (`relays.network`), and so is each machine.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from end_to_end.running import Running
from postgres import Postgres
from relays import guests, network, process
from relays.process import Relay, until

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


class Production:
    """All of it; ends with `made`."""

    def __init__(
        self, folder: Path, url: str, site: network.Site, running: contextlib.ExitStack
    ) -> None:
        self.folder = folder
        self.site = site
        self.machines: dict[str, guests.Machine] = {}
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

    def poll(self, *names: str) -> list[guests.Machine]:
        """Let machines poll, and return them when each has read its document."""
        made = [self.begin_polls(name) for name in names]
        for machine in made:
            until(machine.last, lambda: (machine.name, machine.polls[-3:]))  # noqa: B023 - at once
        return made

    def begin_polls(self, name: str) -> guests.Machine:
        """Let a machine poll, whatever it reads."""
        made = self.machines[name] = guests.Machine(self.site.guests[name])
        self._running.callback(made.close)
        return made

    def request(self, machine: str, event_type: str = "Reboot") -> dict[str, Any]:
        """Request maintenance of a machine, and return its operation."""
        body = {"machines": [machine], "event_type": event_type}
        (operation,) = self.ask("POST", "/v1/maintenances", body)["operations"]
        return dict(operation)

    def vouch(self, machine: guests.Machine, reference: str) -> None:
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
        return guests.judge(self.machines.values(), {name: name for name in self.machines})


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
