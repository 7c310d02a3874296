"""docs/guides/draining.md as it stands: HAProxy, web servers, and agents that drain or end them."""

import contextlib
import functools
import http.client
import re
import shutil
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import patience
from agent import workplace
from end_to_end.agents import Agent, Endpoint, event, started, until
from end_to_end.running import Running
from ports import free_port
from recipes import pages
from recipes.balancer import Balancer
from recipes.power import Power
from recipes.web import Web, asked, long_answer

SETTINGS = pages.block("draining", "haproxy", "runtime API")
NAMES = ("web-0", "web-1")


class Pool(Balancer):
    """The page's HAProxy, before two web servers.

    Args:
        folder: Where its settings go.
        webs: Its two servers.
        checks: How it checks them, if not as on the page.
    """

    def __init__(self, folder: Path, webs: list[Web], *, checks: str = " check") -> None:
        self.port, self.api = free_port(), free_port()
        places = {
            "10.0.0.5:9999": f"127.0.0.1:{self.api}",
            "10.0.0.5:80": f"127.0.0.1:{self.port}",
            "10.0.0.10:8080": f"127.0.0.1:{webs[0].port}",
            "10.0.0.11:8080": f"127.0.0.1:{webs[1].port}",
            " check": checks,
        }
        super().__init__(folder, pages.placed(SETTINGS, places), self.api, NAMES)
        until(lambda: {asked(self.port) for _ in webs} == set(NAMES))


pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")

RULES = pages.block("draining", "toml", "freeze of seconds")
POOL = pages.block("draining", "haproxy", "nbsrv")
SLOW_SECONDS = 2
"""The longest request of the page."""


def test_an_idle_kept_connection_holds_nothing_up_and_goes_to_another_server(
    tmp_path: Path, cloud: Endpoint
) -> None:
    with contextlib.ExitStack() as opened:
        webs = [Web(tmp_path / name, name).start() for name in NAMES]
        for web in webs:
            opened.callback(web.close)
        balancer = Pool(tmp_path, webs)
        opened.callback(balancer.close)
        rules = pages.placed(RULES, {"10.0.0.5:9999": f"127.0.0.1:{balancer.api}"})
        agent = Agent(tmp_path / "agent", cloud.url, rules)
        opened.callback(agent.start().kill)
        agent.until(lambda: agent.page("/readyz")[0] == 200)
        kept = [
            opened.enter_context(
                contextlib.closing(
                    http.client.HTTPConnection("127.0.0.1", balancer.port, patience.SECONDS)
                )
            )
            for _ in range(4)
        ]
        assert {name_by(connection) for connection in kept} == set(NAMES)
        held = {connection.sock for connection in kept}
        cloud.show(event())
        agent.until(lambda: agent.phase() == "Approved")
        assert [name_by(connection) for connection in kept] == ["web-1"] * 4
        assert {connection.sock for connection in kept} == held  # kept all the while


def name_by(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/name")
    return connection.getresponse().read().decode()


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


STARTER = """
# Does nothing where the worker runs already, as the page wants it.
import os, pathlib, select, subprocess
try:
    descriptor = os.pidfd_open(int(pathlib.Path({pid_file!r}).read_text()))
    runs = not select.select([descriptor], [], [], 0)[0]
except OSError:
    runs = False
null = subprocess.DEVNULL
if not runs:
    subprocess.Popen({argv}, start_new_session=True, stdin=null, stdout=null, stderr=null)
"""


def test_a_request_under_way_ends_whole_and_then_the_event_is_approved(
    tmp_path: Path, cloud: Endpoint
) -> None:
    """The page's signal ends a server in good order. A unit is ended by systemd, with the same."""
    with contextlib.ExitStack() as opened:
        web = Web(tmp_path / "web", "web-0")
        opened.callback(web.close)
        web.start().hold()
        began, pool = threading.Event(), opened.enter_context(ThreadPoolExecutor(1))
        request = pool.submit(long_answer, web.port, began)
        assert began.wait(patience.SECONDS)
        starter = STARTER.format(argv=web.argv, pid_file=str(web.pid_file))
        here = {
            "/usr/local/bin/start-worker": workplace.python(tmp_path, "start-worker", starter),
            "/run/worker.pid": str(web.pid_file),
        }
        rules = pages.placed(pages.block("draining", "toml", "pid_file"), here)
        agent = Agent(tmp_path / "agent", cloud.url, rules)
        opened.callback(agent.start().kill)
        agent.until(lambda: agent.page("/readyz")[0] == 200)
        cloud.show(event(EventType="Preempt", notice=30))
        until(lambda: asked(web.port) == "")  # nobody new is let in
        seen = agent.looks
        until(lambda: agent.looks > seen + 1)  # who does not wait had approved by then
        assert (cloud.approved, request.done(), web.status) == ([], False, None)
        web.release()
        assert request.result(patience.SECONDS)
        agent.until(lambda: agent.phase() == "Approved")
        assert (cloud.approved, web.status) == (["E1"], 0)
        cloud.show(started(EventType="Preempt"))
        agent.until(lambda: agent.shows("Started"))
        assert asked(web.port) == ""
        cloud.show()
        until(lambda: asked(web.port) == "web-0")  # it was started again
        agent.until(lambda: not agent.status()["standing"])


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
            self.web.start()
            self.on = True
            self.boots += 1

    def close(self) -> None:
        self._closing.set()
        if self._booting.ident is not None:
            self._booting.join()
        self.web.close()
        self.agent.kill()


class Pair:
    """Both machines, the balancer before them, and the service that has them rebooted."""

    def __init__(self, folder: Path, service: Running, switch: Power) -> None:
        self.service = service
        url = f"http://127.0.0.1:{service.guest_port}"
        webs = [Web(folder / f"of-{name}", name).start() for name in NAMES]
        self.balancer = Pool(folder, webs, checks=CHECKS)
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
        return self.balancer.up() == set(NAMES) and all(
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
            taking = self._pair.balancer.up()
            if not any(self._pair.machines[name].on for name in taking):
                self.nobody += 1


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
    assert (witness.failed, witness.nobody) == (0, 0)
    assert all(witness.answered[name] for name in NAMES)
