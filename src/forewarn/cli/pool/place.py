"""Where a round is played: addresses, ports, and every file that its programs read.

The balancer's and the agents' settings are the recipe's own files, as docs/guides/pool.md has them;
nothing in them is changed but addresses and paths, and where there are no agents, the question that
the balancer asks them.
"""

import errno
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from forewarn.cli.demo import processes
from forewarn.cli.exits import ExitStatus, Failed

ROOM: Final = Path(__file__).parent
RECIPE: Final = ROOM / "recipe"

SCOPE: Final = "web"
DOMAINS: Final = 3
MACHINES: Final = tuple(f"web-{number}" for number in range(6))
"""Two in each update domain: an event names two of them."""

BOOT_SECONDS: Final = 2.0
"""How long a machine is off. Real ones take longer; nothing here depends on it but the wait."""

BALANCER: Final = "127.0.0.10"
NETWORK: Final = "127.0.0.1{number}"
"""The machines' addresses, from 127.0.0.11 on: as the recipe's 10.0.0.10 and following."""

TRIES: Final = 20
"""How many ports are tried until one is free at all addresses; the first nearly always is."""

ASKS_AGENT: Final = """\
    # One probe asks twice. First the agent, which knows what is going to happen to the machine ...
    http-check connect port 8171
    http-check send meth GET uri /readyz
    http-check expect status 200
    # ... then the service itself, at the server's own port.
"""
"""What the balancer's settings have for the agents' sake."""


def domain(machine: str) -> int:
    """Return a machine's update domain."""
    return MACHINES.index(machine) % DOMAINS


def address(machine: str) -> str:
    """Return a machine's address."""
    return NETWORK.format(number=MACHINES.index(machine) + 1)


def fleet() -> dict[str, Any]:
    """Return the fleet as `forewarn fleet apply` takes it."""
    machines = [
        {"name": name, "host": f"h{number}", "update_domain": domain(name)}
        for number, name in enumerate(MACHINES)
    ]
    return {"availability_set": [{"name": SCOPE, "update_domains": DOMAINS, "machines": machines}]}


class Place:
    """One round's files.

    Args:
        folder: Its own, made by whoever plays it.
        agents: Whether there are agents.

    Raises:
        Failed: This system lacks the addresses.
    """

    def __init__(self, folder: Path, *, agents: bool) -> None:
        self.folder = folder
        self.agents = agents
        self.guest_port = processes.free_port()
        self.operator = folder / "operator.sock"
        self.balancer = folder / "haproxy.sock"
        self.host = folder / "host.sock"
        machines = [address(name) for name in MACHINES]
        self.balancer_port = free_port([BALANCER])
        self.room_port = free_port([BALANCER], but=self.balancer_port)
        self.service_port = free_port(machines)
        self.agent_port = free_port(machines, but=self.service_port)

    def log(self, name: str) -> Path:
        """Return where a program's log is."""
        return self.folder / f"{name}.log"

    def write(self) -> None:
        """Write everything."""
        self._put("forewarn.toml", self._service())
        self._put("haproxy.cfg", self._balancer())
        for name in MACHINES:
            if self.agents:
                self._put(f"{name}/agent.toml", self._agent())
                self._put(f"{name}/agent.d/machine.toml", self._machine(name))
                self._put(f"{name}/agent.d/place.toml", self._of_the_place(name))
        self._put("host.json", json.dumps(self._host()))

    def _put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _service(self) -> str:
        program = [sys.executable, "-I", str(ROOM / "restart.py"), str(self.host)]
        return f"""\
[store]
path = {_quoted(self.folder / "forewarn.db")}

[operator]
socket = {_quoted(self.operator)}

[[guest.listener]]
address = "127.0.0.1"
port = {self.guest_port}

[connector]
kind = "command"

[connector.command]
program = {json.dumps(program)}
"""

    def _balancer(self) -> str:
        text = (RECIPE / "haproxy.cfg").read_text(encoding="utf-8")
        if not self.agents:
            text = placed(text, {ASKS_AGENT: ""})
        servers = {
            f"10.0.0.1{number}:8080": f"{address(name)}:{self.service_port}"
            for number, name in enumerate(MACHINES)
        }
        places = {
            "/dev/log local0": "stdout format raw local0",
            "/run/haproxy/admin.sock": str(self.balancer),
            "10.0.0.5:80\n": f"{BALANCER}:{self.balancer_port}\n",
            "10.0.0.5:8405": f"{BALANCER}:{self.room_port}",
        }
        probed = {"port 8171": f"port {self.agent_port}"} if self.agents else {}
        return placed(text, places | servers | probed)

    def _agent(self) -> str:
        text = (RECIPE / "agent.toml").read_text(encoding="utf-8")
        peers = {
            f"10.0.0.1{number}:8171": f"{address(name)}:{self.agent_port}"
            for number, name in enumerate(MACHINES)
        }
        return placed(text, peers | {"10.0.0.5:8405": f"{BALANCER}:{self.room_port}"})

    def _machine(self, name: str) -> str:
        text = (RECIPE / "machine.toml").read_text(encoding="utf-8")
        return placed(text, {"10.0.0.10:8171": f"{address(name)}:{self.agent_port}"})

    def _of_the_place(self, name: str) -> str:
        """Return what a machine of its own would not need: its endpoint and its disk."""
        return f"""\
[client]
endpoint = "http://127.0.0.1:{self.guest_port}/vm/{name}"

[state]
folder = {_quoted(self.folder / name / "state")}
"""

    def _host(self) -> dict[str, Any]:
        machines = {}
        for name in MACHINES:
            where = ("--name", name, "--address", address(name), "--port", str(self.service_port))
            programs = [[sys.executable, "-I", str(ROOM / "backend.py"), *where]]
            if self.agents:
                settings = str(self.folder / name / "agent.toml")
                # What `forewarn agent run` becomes: the command line is of no use to a daemon.
                agent = [sys.executable, "-P", "-m", "forewarn.agent", "--config", settings]
                programs.append(agent)
            machines[name] = {
                "address": address(name),
                "port": self.service_port,
                "log": str(self.log(name)),
                "programs": programs,
            }
        return {
            "socket": str(self.host),
            "boot_seconds": BOOT_SECONDS,
            "machines": machines,
        }


def placed(text: str, places: Mapping[str, str]) -> str:
    """Return a recipe's text with its addresses and paths made the demo's; each must be in it."""
    for written, here in places.items():
        assert written in text, (written, text)
        text = text.replace(written, here)
    return text


def free_port(addresses: Sequence[str], *, but: int = 0) -> int:
    """Return a port that nobody listens on at any of some addresses.

    Args:
        addresses: Of this system.
        but: One that is taken already, though nobody listens on it yet.

    Raises:
        Failed: They are not this system's, or no such port was found.
    """
    for _ in range(TRIES):
        number = 0
        try:
            for one in addresses:
                with socket.socket() as probe:
                    probe.bind((one, number))
                    number = probe.getsockname()[1]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                message = f"{addresses[0]} cannot be used: {error}; the demo needs Linux's loopback"
                raise Failed(ExitStatus.SOCKET_UNUSABLE, message) from error
        else:
            if number != but:
                return number
    message = f"no port is free at {', '.join(addresses)}"
    raise Failed(ExitStatus.SOCKET_UNUSABLE, message)


def _quoted(path: Path) -> str:
    return json.dumps(str(path))  # a JSON string of printable characters is one of TOML's
