"""The addresses of a round, and every file that its programs read.

The settings of the balancer and of the agents are the files of the recipe, as docs/guides/pool.md
has them. Only addresses and paths change; and without agents, the probe that asks them is left out.
"""

import errno
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pool.results import DemoFailed

ROOM: Final = Path(__file__).parent
RECIPE: Final = ROOM / "recipe"

PYTHON: Final = (sys.executable, "-I")
"""How the programs of this folder run: they import nothing of Forewarn."""

FOREWARN: Final = (sys.executable, "-m", "forewarn")
"""The command line of the same environment, whether it is on the PATH or not."""

SCOPE: Final = "web"
DOMAINS: Final = 3
MACHINES: Final = tuple(f"web-{number}" for number in range(6))
"""Two in each update domain: an event names two of them."""

BOOT_SECONDS: Final = 2.0
"""How long a machine is off. A real boot takes longer; only the waiting depends on it."""

BALANCER: Final = "127.0.0.10"
NETWORK: Final = "127.0.0.1{number}"
"""The addresses of the machines, from 127.0.0.11 on, for 10.0.0.10 and following in the recipe."""

TRIES: Final = 20
"""Ports to try until one is free at all addresses; the first nearly always is."""

ASKS_AGENT: Final = """\
    # One probe asks twice: first the agent, which knows what will happen to the machine ...
    http-check connect port 8171
    http-check send meth GET uri /readyz
    http-check expect status 200
    # ... then the service itself, at the server's own port.
"""
"""The lines of the balancer's settings that ask the agents."""


def domain(machine: str) -> int:
    """Return the update domain of a machine."""
    return MACHINES.index(machine) % DOMAINS


def address(machine: str) -> str:
    """Return the address of a machine."""
    return NETWORK.format(number=MACHINES.index(machine) + 1)


def fleet() -> dict[str, Any]:
    """Return the fleet as `forewarn fleet apply` takes it."""
    machines = [
        {"name": name, "host": f"h{number}", "update_domain": domain(name)}
        for number, name in enumerate(MACHINES)
    ]
    return {"availability_set": [{"name": SCOPE, "update_domains": DOMAINS, "machines": machines}]}


class Place:
    """The files of one round, in a folder; DemoFailed where this system lacks the addresses."""

    def __init__(self, folder: Path, *, agents: bool) -> None:
        self.folder = folder
        self.agents = agents
        self.guest_port = free_port(["127.0.0.1"])
        self.operator = folder / "operator.sock"
        self.balancer = folder / "haproxy.sock"
        self.host = folder / "host.sock"
        machines = [address(name) for name in MACHINES]
        self.balancer_port = free_port([BALANCER])
        self.room_port = free_port([BALANCER], but=self.balancer_port)
        self.service_port = free_port(machines)
        self.agent_port = free_port(machines, but=self.service_port)

    def log(self, name: str) -> Path:
        """Return the log of a program."""
        return self.folder / f"{name}.log"

    def write(self) -> None:
        """Write everything."""
        self._put("forewarn.toml", self._service())
        self._put("haproxy.cfg", self._balancer())
        for name in MACHINES:
            if self.agents:
                self._put(f"{name}/agent.toml", self._agent())
                self._put(f"{name}/agent.d/machine.toml", self._machine(name))
                self._put(f"{name}/agent.d/demo.toml", self._of_this_demo(name))
        self._put("host.json", json.dumps(self._host()))

    def _put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _service(self) -> str:
        program = [*PYTHON, str(ROOM / "restart.py"), str(self.host)]
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

    def _of_this_demo(self, name: str) -> str:
        """Return what a real machine does not need: its endpoint and the folder of its state."""
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
            programs = [[*PYTHON, str(ROOM / "backend.py"), *where]]
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
    """Return the text of a recipe with other addresses and paths; each must be in it."""
    for written, here in places.items():
        assert written in text, (written, text)
        text = text.replace(written, here)
    return text


def free_port(addresses: Sequence[str], *, but: int = 0) -> int:
    """Return a port other than `but` that is free at all these addresses; DemoFailed for none."""
    for _ in range(TRIES):
        number = 0
        try:
            for one in addresses:
                with socket.socket() as probe:
                    probe.bind((one, number))
                    number = probe.getsockname()[1]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                message = f"{addresses[0]} cannot be used: {error}; the demo needs Linux"
                raise DemoFailed(message) from error
        else:
            if number != but:
                return number
    raise DemoFailed(f"no port is free at {', '.join(addresses)}")


def _quoted(path: Path) -> str:
    return json.dumps(str(path))  # a JSON string of printable characters is one of TOML's
