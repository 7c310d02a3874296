"""docs/guides/draining.md as it stands: HAProxy, web servers, and agents that drain them."""

import contextlib
import functools
import http.client
import re
import shutil
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import patience
import web
from client.scripted import Scripted, message, serving
from end_to_end.agents import Agent, until
from end_to_end.running import Running
from ports import free_port
from recipes import pages
from recipes.balancer import Balancer
from recipes.power import Power

SETTINGS = pages.block("draining", "haproxy", "runtime API")
NAMES = ("web-0", "web-1")


pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")

RULES = pages.block("draining", "toml", "freeze of seconds")
POOL = pages.block("draining", "haproxy", "nbsrv")
SLOW_SECONDS = 2
"""The longest request of the page."""


def test_every_time_of_the_page_fits_into_the_next() -> None:
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
    (stops,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", pages.block("draining", "ini"))
    service = pages.block("draining", "toml", "web.service")
    limits = [int(word) for word in re.findall(r"stop = .* time_limit_seconds = (\d+)", service)]
    before = [int(word) for word in re.findall(r"wait_seconds = (\d+)", service)]
    assert limits[0] > int(stops)
    assert before[0] + limits[0] < 300 - 5
    assert before[1] + limits[1] <= 30 - 5


BOOT = 0.5
"""Seconds from the host's `done` until the machine's agent is started."""

LOAD = 1.5
"""Seconds from then until its web server is: an application that comes up after the agent."""

CHECKS = " check inter 500ms"
"""A quarter of HAProxy's usual interval, so that seconds of a boot are as many as in production."""

PAUSE = 0.03
FLEET = """
[[availability_set]]
name = "pair"
update_domains = 2
machines = [{ name = "web-0", host = "h1" }, { name = "web-1", host = "h2" }]
"""


class Machine:
    """A web server that answers with its name, and its agent; a host can switch both off and on."""

    def __init__(self, name: str, agent: Callable[[str], Agent]) -> None:
        self.name, self.port = name, free_port()
        self.boots = 0
        self.web: Scripted | None = None
        """Its web server while that runs."""
        self.taking: Callable[[], set[str]] = set
        """The servers that the balancer sends new sessions to."""
        self._make_agent = agent
        self._booting = threading.Thread()
        self._closing = threading.Event()
        self.serve()

    def serve(self) -> None:
        self.web = serving(lambda *_: message(200, self.name.encode()), self.port)
        self.web.__enter__()

    @functools.cached_property
    def agent(self) -> Agent:
        return self._make_agent(self.name)

    def stop(self) -> None:
        """Switch it off; it has been drained."""
        assert self.name not in self.taking()
        self._end()

    def _end(self) -> None:
        server, self.web = self.web, None
        if server is not None:
            server.__exit__()
        self.agent.kill()

    def start(self) -> None:
        """Switch it on, and return before anything runs on it."""
        self._booting = threading.Thread(target=self._boot)
        self._booting.start()

    def _boot(self) -> None:
        if self._closing.wait(BOOT):
            return
        self.agent.start()
        if not self._closing.wait(LOAD):
            self.serve()
            self.boots += 1

    def close(self) -> None:
        self._closing.set()
        if self._booting.ident is not None:
            self._booting.join()
        self._end()


class Pair:
    """Both machines, the balancer before them, and the service that has them rebooted."""

    def __init__(self, folder: Path, service: Running, switch: Power) -> None:
        self.service = service
        self.port, api = free_port(), free_port()
        rules = pages.placed(RULES, {"10.0.0.5:9999": f"127.0.0.1:{api}"})
        url = f"http://127.0.0.1:{service.guest_port}"

        def agent(name: str) -> Agent:
            own = pages.placed(rules, {"web/web-0": f"web/{name}"})
            return Agent(folder / name, url, own, machine=name)

        self.machines = {name: Machine(name, agent) for name in NAMES}
        first, second = self.machines.values()
        places = {
            "10.0.0.5:9999": f"127.0.0.1:{api}",
            "10.0.0.5:80": f"127.0.0.1:{self.port}",
            "10.0.0.10:8080": f"127.0.0.1:{first.port}",
            "10.0.0.11:8080": f"127.0.0.1:{second.port}",
            " check": CHECKS,
        }
        self.balancer = Balancer(folder, pages.placed(SETTINGS, places), api, NAMES)
        self.balancer.wait_for(*NAMES)
        switch.machines = self.machines
        for machine in self.machines.values():
            machine.taking = self.balancer.up
            own = machine.agent.start()
            own.until(lambda agent=own: agent.page("/readyz")[0] == 200)

    def rebooted(self) -> bool:
        """Tell whether both were rebooted, and nothing is left to do."""
        operations = self.service.operator.get("/v1/history")["operations"]
        assert not [each for each in operations if each["status"] == "Failed"], operations
        return (
            all(machine.boots == 1 for machine in self.machines.values())
            and all(each["status"] == "Completed" for each in operations)
            and self.balancer.up() == set(NAMES)
        )

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        self.balancer.close()


class Witness:
    """Sends requests all the while, and looks at what the balancer has to send them to.

    They go by new connections and by one that is kept: who keeps it holds no drain up, and is
    answered by the other server.
    """

    def __init__(self, pair: Pair) -> None:
        self.answered: Counter[str] = Counter()
        self.faults: list[str] = []
        """Requests that got no answer, and looks that found no machine on that took sessions."""
        self._pair = pair
        self._kept = http.client.HTTPConnection("127.0.0.1", pair.port, timeout=patience.SECONDS)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Go on for as long as the block lasts."""
        self._kept.connect()
        first = self._kept.sock
        doing = (self._ask, self._keep, self._look)
        with contextlib.closing(self._kept), patience.meanwhile(*doing, every=PAUSE) as self.faults:
            yield
            assert self._kept.sock is first

    def _ask(self) -> None:
        told = web.ask(self._pair.port, "/")
        assert told.status == 200
        self.answered[told.body] += 1

    def _keep(self) -> None:
        self._kept.request("GET", "/")
        answer = self._kept.getresponse()
        self.answered[f"{answer.read().decode()} kept"] += 1
        assert answer.status == 200

    def _look(self) -> None:
        taking = self._pair.balancer.up()
        assert any(self._pair.machines[name].web for name in taking), taking


@pytest.fixture
def pair(folder: Path, service: Running, switch: Power) -> Iterator[Pair]:
    service.apply(FLEET)
    made = Pair(folder, service, switch)
    yield made
    made.close()


def test_the_pair_loses_no_request(pair: Pair) -> None:
    witness = Witness(pair)
    with witness.looking():
        order = {"event_type": "Reboot", "scopes": ["pair"]}
        answer = pair.service.operator.ask("POST", "/v1/maintenances", order)
        assert answer.status == 201, answer.body
        until(pair.rebooted, functools.partial(pair.service.operator.get, "/v1/history"))
    assert not witness.faults
    assert all(witness.answered[f"{name}{way}"] for name in NAMES for way in ("", " kept"))
