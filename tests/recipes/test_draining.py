"""docs/guides/draining.md as it stands: HAProxy, two web servers, an agent that drains one."""

import http.client
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from end_to_end.agents import Agent, Endpoint, event, started, until
from recipes import commands, pages
from recipes.balancer import Balancer
from recipes.web import Long, Web, asked

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")

RULES = pages.block("draining", "toml", "freeze of seconds")
DROP_IN = pages.block("draining", "toml", "when_cut")
OVER = 5
"""A notice that is over: the agent's margin is as long."""
LIMIT = "time_limit_seconds = 1"


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


def long_one(balancer: Balancer, web: Web) -> Long:
    """Begin a long request, at this one of the servers."""
    web.hold()
    begun: list[Long] = []

    def at_web() -> bool:  # it is one of those that are asked in turn
        begun.append(Long(balancer.port))
        return begun[-1].began == f"{web.name} begins" or not begun[-1].end()

    until(at_web, lambda: balancer.ask("show stat"))
    return begun[-1]


def test_a_session_under_way_ends_whole_and_then_the_event_is_approved(
    cloud: Endpoint, webs: list[Web], balancer: Balancer, agent: Agent
) -> None:
    request = long_one(balancer, webs[0])
    cloud.show(event())
    until(lambda: balancer.state() == "drain")
    assert {asked(balancer.port) for _ in range(40)} == {"web-1"}
    seen = agent.looks
    until(lambda: agent.looks > seen + 1)  # who does not wait had approved by then
    assert (balancer.sessions(), request.whole, cloud.approved) == (1, None, [])
    webs[0].release()
    assert request.end()
    agent.until(lambda: agent.phase() == "Approved")
    assert cloud.approved == ["E1"]
    cloud.show(started())
    agent.until(lambda: agent.shows("Started"))
    assert balancer.state() == "drain"
    cloud.show()
    until(lambda: balancer.state() == "ready")
    until(lambda: {asked(balancer.port) for _ in range(4)} == {"web-0", "web-1"})


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


@pytest.mark.parametrize("state", ["maint", "drain"])
def test_a_server_that_an_administrator_took_out_stays_out(
    state: str, cloud: Endpoint, balancer: Balancer, agent: Agent
) -> None:
    assert balancer.ask(f"set server web/web-0 state {state}").strip() == ""
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Approved")
    assert balancer.state() == state
    cloud.show()
    agent.until(lambda: not agent.status()["standing"] and agent.status()["events"] == [])
    assert balancer.state() == state
    assert {asked(balancer.port) for _ in range(10)} == {"web-1"}


def test_a_session_that_outlasts_the_notice_is_said_and_nobody_approves(
    cloud: Endpoint, webs: list[Web], balancer: Balancer, agent: Agent
) -> None:
    request = long_one(balancer, webs[0])
    cloud.show(event(EventType="Preempt", notice=300))
    until(lambda: balancer.state() == "drain")
    cloud.show(event(EventType="Preempt", notice=OVER))
    agent.until(lambda: agent.phase() == "Held")
    assert "cut: sessions left: 1" in agent.said.read_text()
    assert (cloud.approved, request.whole) == ([], None)
    assert balancer.state() == "drain"  # until the event is over
    webs[0].close()  # what the maintenance does to it
    assert not request.end()
    cloud.show()
    agent.until(lambda: not agent.status()["standing"])
    assert balancer.state() == "ready"


@pytest.mark.soak
def test_with_the_drop_in_what_the_notice_cuts_is_approved(
    cloud: Endpoint, webs: list[Web], balancer: Balancer, agent: Agent
) -> None:
    agent.close()
    (agent.folder / "agent.d" / "sessions.toml").write_text(place(DROP_IN, balancer))
    agent.start()
    request = long_one(balancer, webs[0])
    cloud.show(event())
    until(lambda: balancer.state() == "drain")
    cloud.show(event(notice=OVER))
    agent.until(lambda: agent.phase() == "Approved")
    assert cloud.approved == ["E1"]
    (action,) = agent.status()["events"][0]["actions"]
    assert action["result"] == "cut"
    assert request.whole is None
    webs[0].release()
    assert request.end()


def test_with_the_drop_in_a_session_is_waited_for_no_longer_than_it_says(
    cloud: Endpoint, webs: list[Web], balancer: Balancer, agent: Agent
) -> None:
    agent.close()
    text = pages.placed(place(DROP_IN, balancer), {"time_limit_seconds = 120": LIMIT})
    (agent.folder / "agent.d" / "sessions.toml").write_text(text)
    agent.start()
    request = long_one(balancer, webs[0])
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Approved")
    (action,) = agent.status()["events"][0]["actions"]
    assert (action["result"], action["reason"]) == (
        "failed",
        "it took longer than 1 s; sessions left: 1",
    )
    assert request.whole is None
    webs[0].release()
    assert request.end()


def test_an_api_that_is_away_changes_nothing_and_nobody_approves(
    cloud: Endpoint, balancer: Balancer, agent: Agent
) -> None:
    balancer.close()
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Held")
    assert re.search(r"HAProxy's API at \S+ does not answer", agent.said.read_text())
    cloud.show()
    agent.until(lambda: not agent.status()["standing"])
    assert cloud.approved == []


@pytest.mark.parametrize("line", commands.named("draining"))
def test_every_command_of_the_page_runs_on_its_settings(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = commands.run(line, RULES, tmp_path, capsys)
    assert "drain before anything that stops us" in told
