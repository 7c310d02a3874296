"""A pair behind the HAProxy of docs/guides/draining.md loses no request, whoever asks for what.

Two machines in two update domains, each with a web server and an agent by the page's rules; the
real service; and a host that is done when it has switched a machine on, seconds before its agent
is up, as `virsh reset` is. The web server comes up last.
"""

import contextlib
import functools
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.agents import Agent, until
from end_to_end.running import Running
from recipes import pages
from recipes.balancer import Balancer
from recipes.power import Power
from recipes.web import Web, asked

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")

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
RULES = pages.block("draining", "toml", "freeze of seconds")


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
