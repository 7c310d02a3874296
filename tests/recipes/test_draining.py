"""docs/guides/draining.md as it stands: HAProxy, two web servers, an agent that drains one."""

import http.client
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from end_to_end.agents import Agent, Endpoint, event
from recipes import pages
from recipes.balancer import Balancer
from recipes.web import Web

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
