"""The failover page: a pair of PostgreSQL servers, and the events of their machines."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from end_to_end.agents import Agent, until
from end_to_end.running import Running
from postgres import found
from recipes import pages
from recipes.postgres import PAGE, SCRIPT, Pair, Server, Writer
from recipes.power import Power, completed
from seeds import SEED

pytestmark = pytest.mark.skipif(not found(), reason="PostgreSQL is not installed")

FLEET = """
[[availability_set]]
name = "db"
machines = [{ name = "db-0" }, { name = "db-1" }]
"""
STREAMS = "this is the standby, and streams\n"
SWITCHED = ["stopped", "the standby has everything", "the standby is promoted"]


@pytest.fixture
def pair(folder: Path) -> Iterator[Pair]:
    made = Pair(folder)
    try:
        made.make()
        yield made
    finally:
        made.stop()


@pytest.fixture
def writer(pair: Pair) -> Iterator[Writer]:
    made = Writer(pair.writers)
    try:
        until(lambda: len(made.acknowledged) > 20)
        yield made
    finally:
        made.close()


@pytest.fixture
def service(service: Running, switch: Power, pair: Pair) -> Running:
    """The service, which knows the pair's machines."""
    switch.machines = {server.name: server for server in (pair.first, pair.second)}
    service.apply(FLEET)
    return service


def agent(server: Server, service: Running) -> Agent:
    """Start the page's agent on a server's machine."""
    rules = pages.placed(
        pages.block(PAGE, "toml"),
        {
            "/usr/local/lib/forewarn/switchover.sh": str(SCRIPT),
            "/etc/forewarn/switchover.conf": str(server.settings),
        },
    )
    endpoint = f"http://127.0.0.1:{service.guest_port}"
    made = Agent(server.folder / "agent", endpoint, rules, machine=server.name)
    server.run(made)
    return made


def said(agent: Agent) -> list[str]:
    return [json.loads(line)["event"] for line in agent.log.read_text().splitlines()]


def doings(agent: Agent) -> list[str]:
    """Return what the agent has said of its actions."""
    return [line for line in said(agent) if line.startswith(("doing ", "undoing "))]


def approved_at(record: Any) -> datetime:
    """Return when an operation's one event was approved, by the service's record."""
    (event,) = record["events"]
    return datetime.fromisoformat(event["approval"]["at"])


def promoted_at(server: Server, timeline: int) -> datetime:
    """Return when a server took over and opened a timeline, by its own log."""
    line = rf"(?m)^(\S+ \S+) UTC LOG:  selected new timeline ID: {timeline}$"
    (time,) = re.findall(line, server.log)
    return datetime.fromisoformat(time).replace(tzinfo=UTC)


def more(writer: Writer) -> None:
    """Wait until writes go on."""
    count = len(writer.acknowledged)
    until(lambda: len(writer.acknowledged) > count + 20)


def over(agent: Agent) -> None:
    """Wait until an event is over for an agent, and everything is undone."""
    agent.until(lambda: agent.status().get("events") == [] and not agent.status()["standing"])


def judge(writer: Writer, primary: Server, standby: Server) -> None:
    """Nothing acknowledged is lost, there is one primary, and the other follows it."""
    more(writer)
    writer.close()
    assert [server.standby for server in (primary, standby)] == [False, True]
    until(lambda: standby.streams, lambda: standby.log)
    lost = set(writer.acknowledged) - primary.rows
    assert not lost
    until(lambda: standby.rows == primary.rows)


def test_each_reboot_waits_for_the_standby_to_be_promoted_and_loses_no_write(
    pair: Pair, writer: Writer, service: Running, switch: Power
) -> None:
    both = [pair.first, pair.second]
    agents = [agent(server, service) for server in both]
    for turn, (old, new) in enumerate([both, both[::-1]]):
        assert service.call("schedule", "reboot", old.name).returncode == 0
        record = completed(service, turn + 1)
        assert record["start_cause"] == "approved"
        assert promoted_at(new, turn + 2) < approved_at(record)
        over(agents[turn])
        assert service.posts() == turn + 1
        assert doings(agents[turn])[-1].endswith("done: this is the standby, and streams")
        more(writer)
        assert (new.standby, old.standby, old.streams) == (False, True, True)
    assert switch.acts == ["Reboot db-0", "Reboot db-1"]
    judge(writer, pair.first, pair.second)


# The script by hand: each part gets the primary and its standby, and leaves both in order.


def run_twice(old: Server, new: Server) -> None:
    assert old.switchover("recover") == (0, "nothing was switched here\n")
    status, text = old.switchover("prepare")
    assert status == 0
    assert re.sub(r" up to 0/.*", "", text).splitlines() == SWITCHED
    assert old.switchover("prepare") == (0, "the other server is the primary already\n")
    assert old.switchover("recover") == (0, STREAMS)
    assert old.switchover("recover") == (0, "nothing was switched here\n")
    assert not new.standby


def run_killed(old: Server, new: Server, chance: random.Random) -> None:
    with old.begin("prepare") as script:
        try:
            script.wait(chance.uniform(0.0, 1.2))
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
    status, text = old.switchover("prepare")
    assert status == 0, f"SEED={SEED}: {text}"
    assert not new.standby, f"SEED={SEED}"
    assert old.switchover("recover") == (0, STREAMS), f"SEED={SEED}"


def lose_the_standby(old: Server, new: Server) -> None:
    """The standby goes away while the primary stops, which leaves the primary as it was."""
    kill = f"kill -9 {new.pid}"
    old.hinder(f"{kill}\n{old.folder}/systemctl stop postgresql@15-main", REPLAY_SECONDS=1)
    status, text = old.switchover("prepare")
    assert (status, text) == (
        1,
        "stopped\nthe standby has not received everything: this stays the primary\n",
    )
    assert old.switchover("recover") == (0, "nothing was switched here\n")
    until(lambda: new.pid == 0)
    new.start()


def lose_the_primary(old: Server, new: Server) -> None:
    """An old primary that crashed is not started beside the new one."""
    old.begun.touch()
    old.stop()  # as a machine that dies before its server has stopped
    assert old.switchover("recover") == (0, "this is the primary again\n")
    old.begun.touch()
    old.stop()
    assert new.ask("SELECT pg_promote()") == "t"
    status, text = old.switchover("recover")
    assert (status, old.pid) == (1, 0)
    assert "rewind it (pg_rewind)" in text
    assert old.begun.exists()
    new.stop()
    status, text = old.switchover("recover")
    assert (status, old.pid) == (1, 0)
    assert "may be the primary: nothing is started" in text
    new.start()
    shutil.rmtree(old.data)
    old.copy(new)
    assert old.switchover("recover") == (0, STREAMS)
    assert not old.begun.exists()


@pytest.mark.soak
def test_the_script_loses_nothing_whenever_it_is_run_killed_or_left_alone(
    pair: Pair, writer: Writer
) -> None:
    chance = random.Random(SEED)
    old, new = pair.first, pair.second
    assert (old.standby, new.standby) == (False, True)
    run_twice(old, new)
    for _ in range(6):
        more(writer)
        old, new = new, old
        run_killed(old, new, chance)
    more(writer)
    lose_the_standby(new, old)
    judge(writer, new, old)
    lose_the_primary(new, old)
