"""Three replicas on PostgreSQL, hosts with a relay each, and machines that poll: all processes.

Each host is a network namespace (`relays.network`), and so is each machine.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from end_to_end.running import Running
from kills.processes import let_pass
from postgres import FAST, Postgres
from relays import guests, network

T = TypeVar("T")

NAMES: Final = ("r1", "r2", "r3")
FIRST_PORT: Final = 8473
"""Of the first replica's relay plane; the others follow."""

WAIT_SECONDS: Final = 60.0
"""An end to waiting, for a machine that does much else."""

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
upstream = [{upstream}]
token_file = "{token}"
ca_file = "{certificate}"
state_directory = "{folder}"
[[listener]]
address = "169.254.169.254"
port = 80
[log]
format = "json"
"""


def until(
    condition: Callable[[], T | None], why: Callable[[], object] = lambda: "", every: float = 0.05
) -> T:
    """Return what the condition returns once that is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, why()
        let_pass(every)
    return found


class Relay:
    """`forewarn relay`, killed and started as a test likes.

    Args:
        folder: Of its own.
        host: The host that it is on.
        settings: Its whole settings.
        within: What stands before its command.
    """

    def __init__(self, folder: Path, host: str, settings: str, within: Sequence[str] = ()) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.host = host
        self.log = folder / "relay.log"
        self._from = 0
        self._within = within
        self._config = folder / "relay.toml"
        self._config.write_text(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to start it; `wait_until_ready` returns when it answers guests."""
        self._from = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "forewarn", "relay", "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*self._within, *command], stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        """Return when its log says that it answers guests."""

        def ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            return b'"event": "ready"' in self.log.read_bytes()[self._from :]

        until(ready, self.said)

    def said(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-4000:]

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Take its process away, or what is left of it."""
        assert self.end(signal.SIGKILL) == -signal.SIGKILL, self.said()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal, and return its status."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


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
        self._certificate, self._key = folder / "tls.crt", folder / "tls.key"
        self._make_certificate()
        self.replicas = {
            name: self._replica(number, name, url) for number, name in enumerate(NAMES)
        }
        for replica in self.replicas.values():
            replica.start()
            running.callback(_end, replica)

    def _make_certificate(self) -> None:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
                *("-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=forewarn"),
                *("-addext", f"subjectAltName=IP:{network.SERVICE}"),
                *("-keyout", str(self._key), "-out", str(self._certificate)),
            ],
            check=True,
            capture_output=True,
        )
        self._key.chmod(0o600)

    def _replica(self, number: int, name: str, url: str) -> Running:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        made = Running(folder)
        made.settings.write_text(
            SETTINGS.format(
                url=url,
                name=name,
                address=network.SERVICE,
                port=FIRST_PORT + number,
                certificate=self._certificate,
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
            certificate=self._certificate,
            folder=folder,
        )
        made = self.relays[host] = Relay(folder, host, settings, self.site.hosts[host].within())
        made.start()
        self._running.callback(made.end)
        if waits:
            made.wait_until_ready()
        return made

    def poll(self) -> None:
        """Let all machines poll, and return when each has read its document."""
        for name, guest in self.site.guests.items():
            self.machines[name] = guests.Machine(guest)
            self._running.callback(self.machines[name].close)
        for machine in self.machines.values():
            until(machine.last, lambda: (machine.name, machine.polls[-3:]))  # noqa: B023 - at once

    def request(self, machine: str, event_type: str = "Reboot") -> dict[str, Any]:
        """Request maintenance of a machine, and return its operation."""
        body = {"machines": [machine], "event_type": event_type}
        (operation,) = self.ask("POST", "/v1/maintenance", body)["operations"]
        return dict(operation)

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
        server = Postgres(*FAST).start()
        running.callback(server.remove)
        url = server.create_database("forewarn")
        os.environ.pop("FOREWARN_OPERATOR", None)
        yield Production(folder, url, site, running)
