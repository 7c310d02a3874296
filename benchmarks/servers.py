"""The contestants of a comparison: each a server of its own on the server's core."""

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import machine
import networks
from networks import Network
from service import Service, placed, series_of

HERE = Path(__file__).parent / "contestants"
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
BODY = '{"DocumentIncarnation":0,"Events":[]}'
"""What every contestant answers: the document of a scope that never had an event, as most polls
read. `ask` compares it with what each truly sends."""

CALLERS = 128
"""Machines that ask, each from its own address."""

START_SECONDS = 60.0

WITHOUT_RATE = "[rules]\nrate_per_second = 0\n"
"""The settings of a comparison are those that the service ships with but for the rate, which one
machine of 128 that asks thousands of times a second would be over."""


def ask(port: int, host: str = "127.0.0.1", address: str = "127.1.0.1") -> tuple[int, str]:
    """Ask once, from the first machine's address or another."""
    connection = http.client.HTTPConnection(host, port, timeout=10, source_address=(address, 0))
    connection.request("GET", TARGET, headers={"Metadata": "true"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


class Contestant:
    """A server that runs while the `with` block does.

    Args:
        name: As it stands in the tables.
        command: Returns the command line, by the port and a folder of its own.
        expected: Asks it, by the port, and says whether the answer is right.
        variables: What its environment has beside ours.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int, Path], list[str]],
        expected: Callable[[int], bool] = lambda port: ask(port) == (200, BODY),
        **variables: str,
    ) -> None:
        self.name = name
        self.port = machine.free_port()
        self._command = command
        self._expected = expected
        self._variables = variables

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="forewarn-bench-"))
        command = self._command(self.port, self._folder)
        with (self._folder / "log").open("wb") as log, machine.on_cores():
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._variables},
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                assert self._expected(self.port), self.name
            except OSError:
                said = (self._folder / "log").read_text(encoding="utf-8")
                assert self._process.poll() is None, said
                assert time.monotonic() < until, said
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        shutil.rmtree(self._folder)

    @property
    def pid(self) -> int:
        """Its process; nsenter becomes what it begins."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """The processor time that it has used."""
        return machine.cpu_seconds(self._process.pid)

    def memory_mib(self) -> float:
        """The memory that its processes hold."""
        return machine.session_kib(self._process.pid) / 1024

    def counted(self) -> int | None:
        """How many requests it says that it has answered; None where it counts none."""
        return None


class Forewarn:
    """The service itself, with a fleet of which each machine has its address."""

    name = "forewarn"

    def __init__(self) -> None:
        self._service = Service(WITHOUT_RATE)
        self.port = self._service.port

    def __enter__(self) -> Self:
        self._service.start()
        self._service.ask("PUT", "/v1/fleet", placed(CALLERS))
        assert ask(self.port) == (200, BODY), ask(self.port)
        return self

    def __exit__(self, *exception: object) -> None:
        self._service.__exit__(*exception)

    def cpu_seconds(self) -> float:
        return self._service.cpu_seconds()

    def counted(self) -> int | None:
        return int(self._service.metric("forewarn_guest_requests_total"))


RELAY = """
[upstream]
urls = ["http://127.0.0.1:{plane}"]
token_file = "{folder}/token"
[state]
folder = "{folder}"
[status]
listen = "{address}:{status}"
[[guest.listener]]
address = "{address}"
port = {port}
{listener}
"""
"""The settings of a relay whose service listens for it at a loopback port."""

HOST = "h1"
"""The host of the relay's machines."""


class RelayContestant:
    """A relay on the server's core; its service is beside the load.

    It can be measured as a `Service`: what guests cost is the relay's, the rest its service's.

    Args:
        settings: Of the service.
        address: Where guests ask; and where this process asks how the relay fares, unless `asked`
            says otherwise.
        asked: The address at which this process reaches the relay.
        listener: TOML that is added to the listener's settings.
        within: What stands before the commands of both.
        ready: Returns whether the relay answers guests, by its port.
    """

    name = "forewarn relay"

    def __init__(
        self,
        fleet: dict[str, Any] | None = None,
        *,
        settings: str = WITHOUT_RATE,
        address: str = "127.0.0.1",
        asked: str = "127.0.0.1",
        listener: str = "",
        within: Sequence[str] = (),
        ready: Callable[[int], bool] = lambda port: ask(port) == (200, BODY),
    ) -> None:
        self._fleet = fleet or placed(CALLERS, host=HOST)
        self._plane, self._status = machine.free_port(), machine.free_port()
        self._address, self._asked = address, asked
        self._listener, self._within = listener, within
        plane = f'{settings}\n[relay]\nlisten = "127.0.0.1:{self._plane}"\n'
        self.service = Service(plane, alone=False, within=within)
        self._relay = Contestant(self.name, self._command, ready)
        self.port = self._relay.port
        self.ask, self.history = self.service.ask, self.service.history

    def _command(self, port: int, folder: Path) -> list[str]:
        token = self.service.ask("POST", "/v1/relays/tokens", {"host": HOST})["token"]
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(token, encoding="utf-8")
        text = RELAY.format(
            plane=self._plane,
            folder=folder,
            port=port,
            address=self._address,
            status=self._status,
            listener=self._listener,
        )
        (folder / "relay.toml").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "forewarn.relay.run"]
        return [*self._within, *command, "--config", str(folder / "relay.toml")]

    def __enter__(self) -> Self:
        self.service.start()
        self.service.ask("PUT", "/v1/fleet", self._fleet)
        self._relay.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._relay.__exit__(*exception)
        self.service.__exit__(*exception)

    def cpu_seconds(self) -> float:
        return self._relay.cpu_seconds()

    def memory_mib(self, field: str = "VmRSS") -> float:
        return machine.memory_kib(self._relay.pid, field) / 1024

    def forget_peak(self) -> None:
        machine.forget_peak(self._relay.pid)

    def metrics(self, name: str) -> dict[str, float]:
        """What the relay counts by the name that the service has for it."""
        connection = http.client.HTTPConnection(self._asked, self._status, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        return series_of(page, name.replace("forewarn_", "forewarn_relay_", 1))

    def metric(self, name: str) -> float:
        return sum(self.metrics(name).values())

    def counted(self) -> int | None:
        return int(self.metric("forewarn_guest_requests_total"))


def _nginx(
    port: int, folder: Path, configuration: str = "nginx.conf", body: str = BODY
) -> list[str]:
    text = (HERE / configuration).read_text(encoding="utf-8")
    for name, value in {"PORT": str(port), "BODY": body, "FOLDER": str(folder)}.items():
        text = text.replace(f"@{name}@", value)
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    (folder / "document").write_text(body, encoding="utf-8")
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def nginx_with_limits(network: Network, body: str) -> Contestant:
    """Return an nginx that stands where the service does, with limits for each address."""
    return Contestant(
        "nginx with limits",
        lambda port, folder: [
            *network.within(networks.SERVICE),
            *_nginx(port, folder, "nginx-limits.conf", body),
        ],
        lambda port: (
            ask(port, network.service, network.address(networks.NEIGHBOUR, 0)) == (200, body)
        ),
    )


def _uvicorn(port: int, _: Path) -> list[str]:
    options = ["--no-access-log", "--log-level", "warning", "--loop", "uvloop"]
    place = ["--host", "127.0.0.1", "--port", str(port), "--app-dir", str(HERE)]
    return [sys.executable, "-m", "uvicorn", "asgi:app", "--http", "httptools", *options, *place]


def _go(port: int, folder: Path) -> list[str]:
    built = folder / "contestant"
    subprocess.run(["go", "build", "-o", str(built), "."], cwd=HERE / "go", check=True)
    return [str(built), str(port), BODY]


Server = Contestant | Forewarn | RelayContestant


def contestants() -> tuple[list[Server], list[str]]:
    """Return those that can run here, the service first, and the programs that others lack."""
    lacking = machine.missing("nginx", "go")
    here = Path(__file__).parent
    chosen: list[Server] = [Forewarn(), RelayContestant()]
    if "nginx" not in lacking:
        chosen.append(Contestant("nginx return 200", _nginx))
    if "go" not in lacking:
        # One core is given to it, and it would else believe that it has all of them.
        chosen.append(Contestant("Go net/http", _go, GOMAXPROCS="1"))
    chosen.append(
        Contestant(
            "exchange on uvicorn",
            _uvicorn,
            PYTHONPATH=os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]),
            FOREWARN_BENCH_MACHINES=str(CALLERS),
        )
    )
    return chosen, lacking
