"""docs/guides/draining.md as it stands: HAProxy, two web servers, and agents that drain them."""

import contextlib
import csv
import functools
import http.client
import io
import re
import shutil
import socket
import subprocess
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from end_to_end.agents import Agent, Endpoint, event, until
from end_to_end.running import Running
from ports import free_port
from recipes import pages
from recipes.power import Power
from recipes.web import Web, asked

SETTINGS = pages.block("draining", "haproxy", "runtime API")


class Balancer:
    """A HAProxy by the page's settings.

    Args:
        folder: Where its settings go.
        webs: Its two servers.
        checks: How it checks them, if not as on the page.
    """

    def __init__(self, folder: Path, webs: list[Web], *, checks: str = " check") -> None:
        self.port, self.api = free_port(), free_port()
        placed = pages.placed(
            SETTINGS,
            {
                "10.0.0.5:9999": f"127.0.0.1:{self.api}",
                "10.0.0.5:80": f"127.0.0.1:{self.port}",
                "10.0.0.10:8080": f"127.0.0.1:{webs[0].port}",
                "10.0.0.11:8080": f"127.0.0.1:{webs[1].port}",
                " check": checks,
            },
        )
        (folder / "haproxy.cfg").write_text(placed)
        argv = ["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")]
        self._process = subprocess.Popen(argv)
        until(lambda: {asked(self.port) for _ in webs} == {web.name for web in webs})

    def ask(self, line: str) -> str:
        with socket.create_connection(("127.0.0.1", self.api), 10) as connection:
            connection.sendall(f"{line}\n".encode())
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer.decode()

    def sessions(self) -> int:
        """Return how many sessions web-0 has."""
        return int(self._rows()["web-0"]["scur"])

    def taking(self) -> set[str]:
        """Return the servers that get new sessions, by its checks and by what it was told."""
        return {name for name, row in self._rows().items() if row["status"].startswith("UP")}

    def _rows(self) -> dict[str, dict[str, str]]:
        """Return the statistics of each server of the backend."""
        table = csv.DictReader(io.StringIO(self.ask("show stat").removeprefix("# ")))
        return {row["svname"]: row for row in table if row["svname"].startswith("web-")}

    def state(self) -> str:
        """Return what web-0 was set to by the API."""
        lines = [line.removeprefix("# ") for line in self.ask("show servers state").splitlines()]
        table = csv.DictReader(io.StringIO("\n".join(lines[1:])), delimiter=" ")
        state = next(row["srv_admin_state"] for row in table if row["srv_name"] == "web-0")
        return {"0": "ready", "1": "maint", "8": "drain"}[state]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")

RULES = pages.block("draining", "toml", "freeze of seconds")
POOL = pages.block("draining", "haproxy", "nbsrv")
SLOW_SECONDS = 2
"""The longest request of the page."""


@pytest.fixture
def webs(tmp_path: Path) -> Iterator[list[Web]]:
    made = [Web(tmp_path / name, name).start() for name in ("web-0", "web-1")]
    yield made
    for web in made:
        web.close()


@pytest.fixture
def balancer(tmp_path: Path, webs: list[Web]) -> Iterator[Balancer]:
    made = Balancer(tmp_path, webs)
    yield made
    made.close()


@pytest.fixture
def agent(tmp_path: Path, cloud: Endpoint, balancer: Balancer) -> Iterator[Agent]:
    made = Agent(tmp_path / "agent", cloud.url, place(RULES, balancer))
    made.start()
    made.until(lambda: made.page("/readyz")[0] == 200)
    yield made
    made.close()


def place(text: str, balancer: Balancer) -> str:
    return pages.placed(text, {"10.0.0.5:9999": f"127.0.0.1:{balancer.api}"})


def test_an_idle_kept_connection_holds_nothing_up_and_goes_to_another_server(
    cloud: Endpoint, webs: list[Web], balancer: Balancer, agent: Agent
) -> None:
    kept = [
        http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=patience.SECONDS)
        for _ in range(4)
    ]
    assert {name_by(connection) for connection in kept} == {"web-0", "web-1"}
    held = {connection.sock for connection in kept}
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Approved")
    assert [name_by(connection) for connection in kept] == ["web-1"] * 4
    assert {connection.sock for connection in kept} == held  # the same ones, kept all the while
    for connection in kept:
        connection.close()


def name_by(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/name")
    return connection.getresponse().read().decode()


def test_the_wait_covers_the_probes_and_the_longest_request() -> None:
    (inter,) = re.findall(r" inter (\d+)s ", POOL)
    (fast,) = re.findall(r" fastinter (\d+)ms ", POOL)
    (answer,) = re.findall(r"timeout check (\d+)s", POOL)
    assert " fall 2 " in POOL
    noticed = (int(inter) + int(answer)) + (int(fast) / 1000 + int(answer))
    rules = tomllib.loads(pages.block("draining", "toml", "/room"))["rule"]
    waits = [step["ready"] for rule in rules for step in rule.get("prepare", []) if "ready" in step]
    assert len(waits) == 2
    for wait in waits:
        assert wait["wait_seconds"] >= noticed + SLOW_SECONDS + 1
        assert wait["wait_seconds"] < 30 - 5  # a Preempt's notice, less the agent's margin


NAMES = ("web-0", "web-1")
BOOT = 0.5
"""Seconds from the host's `done` until the machine's agent is started."""

LOAD = 1.5
"""Seconds from then until its web server is: an application that comes up after the agent."""

CHECKS = " check inter 500ms"
"""A quarter of HAProxy's usual interval, so that seconds of a boot are as many as in production."""

CLIENTS, PAUSE = 2, 0.03
FLEET = """
[[availability_set]]
name = "pair"
update_domains = 2
machines = [{ name = "web-0", host = "h1" }, { name = "web-1", host = "h2" }]
"""


class Machine:
    """A web server and its agent, which a host can switch off and on."""

    def __init__(self, web: Web, agent: Agent) -> None:
        self.web, self.agent = web, agent
        self.boots = 0
        self.on = True
        """Whether its web server runs."""
        self._booting = threading.Thread()
        self._closing = threading.Event()

    def stop(self) -> None:
        self.on = False
        self.web.kill()
        self.agent.close()

    def start(self) -> None:
        """Switch it on, and return before anything runs on it."""
        self._booting = threading.Thread(target=self._boot)
        self._booting.start()

    def _boot(self) -> None:
        if self._closing.wait(BOOT):
            return
        self.agent.start()
        if not self._closing.wait(LOAD):
            self.web.start()
            self.on = True
            self.boots += 1

    def close(self) -> None:
        self._closing.set()
        if self._booting.ident is not None:
            self._booting.join()
        self.web.close()
        self.agent.close()


class Pair:
    """Both machines, the balancer before them, and the service that has them rebooted."""

    def __init__(self, folder: Path, service: Running, switch: Power) -> None:
        self.service = service
        url = f"http://127.0.0.1:{service.guest_port}"
        webs = [Web(folder / f"of-{name}", name).start() for name in NAMES]
        self.balancer = Balancer(folder, webs, checks=CHECKS)
        self.machines = {}
        for name, web in zip(NAMES, webs, strict=True):
            rules = pages.placed(
                RULES,
                {"10.0.0.5:9999": f"127.0.0.1:{self.balancer.api}", "web/web-0": f"web/{name}"},
            )
            agent = Agent(folder / name, url, rules, machine=name)
            self.machines[name] = Machine(web, agent)
            agent.start()
        switch.machines = self.machines
        for machine in self.machines.values():
            machine.agent.until(lambda agent=machine.agent: agent.page("/readyz")[0] == 200)

    def rebooted(self) -> bool:
        """Tell whether both were rebooted, and nothing is left to do."""
        if not all(machine.boots == 1 for machine in self.machines.values()):
            return False
        operations = self.service.operator.get("/v1/history")["operations"]
        assert not [each for each in operations if each["status"] == "Failed"], operations
        return self.balancer.taking() == set(NAMES) and all(
            each["status"] == "Completed" for each in operations
        )

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        self.balancer.close()


class Witness:
    """Sends requests all the while, and looks at what the balancer has to send them to."""

    def __init__(self, pair: Pair) -> None:
        self.answered: Counter[str] = Counter()
        self.failed = 0
        """Requests that got no answer."""
        self.nobody = 0
        """Looks that found no machine on that took new sessions."""
        self._pair = pair
        self._over = threading.Event()

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Go on for as long as the block lasts."""
        threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        threads.append(threading.Thread(target=self._look))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _ask(self) -> None:
        while not self._over.wait(PAUSE):
            if name := asked(self._pair.balancer.port):
                self.answered[name] += 1
            else:
                self.failed += 1

    def _look(self) -> None:
        while not self._over.wait(PAUSE):
            taking = self._pair.balancer.taking()
            if not any(self._pair.machines[name].on for name in taking):
                self.nobody += 1


@pytest.fixture
def pair(folder: Path, service: Running, switch: Power) -> Iterator[Pair]:
    service.apply(FLEET)
    made = Pair(folder, service, switch)
    yield made
    made.close()


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([{"scopes": ["pair"]}], id="one scope"),
        pytest.param(
            [{"machines": [name]} for name in NAMES],
            id="two requests at once",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_the_pair_loses_no_request(pair: Pair, requests: list[dict[str, object]]) -> None:
    witness = Witness(pair)
    with witness.looking():
        for request in requests:
            answer = pair.service.operator.ask(
                "POST", "/v1/maintenances", {"event_type": "Reboot", **request}
            )
            assert answer.status == 201, answer.body
        history = functools.partial(pair.service.operator.get, "/v1/history")
        until(pair.rebooted, history)
    assert (witness.failed, witness.nobody) == (0, 0)
    assert all(witness.answered[name] for name in NAMES)
