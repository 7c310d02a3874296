"""`forewarn doctor`: what it finds on a guest and on the service's machine; it changes nothing."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import patience
from client.scripted import message, serving
from forewarn.agent import settings as of_agent
from forewarn.agent import status
from forewarn.cli import main
from forewarn.cli.doctor import AGENT, SERVICE, Finding, Level, examine
from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from forewarn.server import settings as of_service
from forewarn.server.guest.listener import Listener
from forewarn.store.sqlite import InMemoryStore
from forewarn.testing import Emulator
from ports import free_port
from server.running import NOON, Running, settings_in

Levels = dict[str, list[Level]]


def levels(checks: Any, loaded: object, *names: str) -> Levels:
    """The levels of the findings of these checks."""
    chosen = {name: checks[name] for name in names}
    found: Levels = {name: [] for name in names}
    for name, (level, _) in examine(chosen, loaded, patience.SECONDS):
        found[name].append(level)
    return found


# How checks are carried out.


def test_a_check_that_hangs_ends_by_its_limit_and_holds_no_other_up() -> None:
    never = threading.Event()

    def hangs(_: object) -> Iterator[Finding]:
        never.wait()
        yield Finding(Level.OK, "never")

    def fails(_: object) -> Iterator[Finding]:
        yield Finding(Level.OK, "so far")
        raise ZeroDivisionError

    table = {"hangs": hangs, "fails": fails}
    found = [(name, level) for name, (level, _) in examine(table, None, limit_seconds=0.0)]
    never.set()
    assert ("hangs", Level.FAIL) in found
    whole = [(name, level) for name, (level, _) in examine(table, None, patience.SECONDS)]
    assert whole == [("hangs", Level.OK), ("fails", Level.OK), ("fails", Level.FAIL)]


# On a guest.


def loaded(**more: Any) -> of_agent.Loaded:
    settings = msgspec.convert(more, of_agent.AgentSettings)
    return of_agent.Loaded(settings=settings, files=(), origins={})


@contextmanager
def agent(**more: Any) -> Iterator[str]:
    """An agent's status port that tells a status."""
    tree = {
        "machine": "web-0",
        "dry_run": False,
        "ready": True,
        "trouble": "",
        "endpoint": {"answers": True, "answered_seconds_ago": 1.0},
        "events": [],
        "standing": [],
        **more,
    }
    assert list(status.lines(tree))  # it has the fields that a real one has

    with serving(lambda *_: message(200, json.dumps(tree).encode())) as server:
        yield f"127.0.0.1:{server.port}"


@pytest.mark.parametrize(("name", "level"), [("", 0), ("WEB-0", 0), ("web-1", 2)])
def test_the_endpoint_has_to_know_the_machine_by_its_own_name(name: str, level: int) -> None:
    with Emulator() as emulator:
        endpoint = emulator.machine("web-0").endpoint
        client = {"endpoint": endpoint, "machine": name}
        assert levels(AGENT, loaded(client=client), "endpoint") == {"endpoint": [level]}
        stranger = {"endpoint": endpoint.replace("web-0", "nobody")}
        assert levels(AGENT, loaded(client=stranger), "endpoint") == {"endpoint": [Level.FAIL]}


def test_nobody_answers() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    client = {"endpoint": f"http://{nowhere}"}
    found = loaded(client=client, status={"listen": nowhere}, peers=(f"http://{nowhere}",))
    names = ("endpoint", "status port", "peers")
    assert levels(AGENT, found, *names) == {name: [Level.FAIL] for name in names}


def test_an_agent_in_trouble_with_an_event_that_stays_held_and_one_that_is_well() -> None:
    event = {
        "event_id": "A",
        "event_type": "Reboot",
        "event_status": "Scheduled",
        "resources": ["web-0", "127.0.0.1"],
        "notice_left_seconds": 9.0,
        "rule": "drain",
        "phase": "held",
        "stays_held": "it failed",
        "actions": [],
    }
    effect = {"effect": "drain", "stuck": True, "undoing": False, "tells": False}
    with agent(trouble="the disk is full", events=[event], standing=[effect]) as address:
        port = address.rpartition(":")[2]
        found = loaded(status={"listen": address}, peers=f"http://{{machine}}:{port}")
        told = levels(AGENT, found, "status port", "peers")
        assert told == {"status port": [Level.WARN] * 3, "peers": [Level.OK]}
    with agent() as address:
        peers = (f"http://{address}", f"http://127.0.0.1:{free_port()}")
        found = loaded(status={"listen": address}, peers=peers)
        told = levels(AGENT, found, "status port", "peers")
        assert told == {"status port": [Level.OK], "peers": [Level.OK, Level.FAIL]}


def test_a_program_that_is_not_there_is_a_warning() -> None:
    step = {"command": {"run": ["/no/such/drain"], "repeatable": True}}
    rule = {"name": "drain", "approve": "never", "prepare": [step]}
    assert levels(AGENT, loaded(rule=[rule]), "programs") == {"programs": [Level.WARN]}
    assert levels(AGENT, loaded(), "programs") == {"programs": [Level.OK]}


# On the service's machine.


@pytest.fixture
def service(tmp_path: Path) -> Iterator[of_service.Settings]:
    settings = settings_in(tmp_path)
    (tmp_path / "forewarn.db").touch()
    with Running(settings, InMemoryStore(), ManualClock(NOON)) as running:
        yield running.settings


def test_a_service_that_is_up(service: of_service.Settings) -> None:
    assert levels(SERVICE, service, "operators", "alerts", "store", "connector", "relays") == {
        "operators": [Level.OK],
        "alerts": [Level.OK],
        "store": [Level.OK],
        "connector": [Level.WARN],  # it is a simulated one
        "relays": [],
    }


def listening(folder: Path, *listeners: Listener) -> of_service.Settings:
    settings = settings_in(folder)
    return replace(settings, guest=replace(settings.guest, listener=listeners))


def test_a_service_that_is_down(tmp_path: Path) -> None:
    names = ("operators", "alerts", "guests")
    found = levels(SERVICE, listening(tmp_path, Listener(port=free_port())), *names)
    assert found == {name: [Level.FAIL] for name in names}


def test_a_listener_is_reached_also_where_it_listens_everywhere(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        settings = listening(tmp_path, Listener(address="0.0.0.0", port=port), Listener(port=port))
        assert levels(SERVICE, settings, "guests") == {"guests": [Level.OK, Level.OK]}


def test_a_connector_without_its_program_fails(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)

    def with_program(*program: str) -> of_service.Settings:
        command = replace(settings.connector.command, program=program)
        connector = replace(settings.connector, kind="command", command=command)
        return replace(settings, connector=connector)

    assert levels(SERVICE, with_program("/no/such"), "connector") == {"connector": [Level.FAIL]}
    assert levels(SERVICE, with_program("true"), "connector") == {"connector": [Level.OK]}
    assert not Path(settings.connector.command.state).exists()


# The command.


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of settings, with none in it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path / "config"))
    monkeypatch.setenv("STATE_DIRECTORY", os.fspath(tmp_path / "state"))
    folder = tmp_path / "config" / "forewarn"
    folder.mkdir(parents=True)
    return folder


def test_it_looks_at_what_has_settings(
    nowhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*argv: str) -> tuple[int, set[str]]:
        capsys.readouterr()
        ended = main.execute(["doctor", "--json", *argv])
        printed = capsys.readouterr().out
        return ended, {one["part"] for one in json.loads(printed)["findings"]} if printed else set()

    (nowhere / "agent.toml").write_text(f'status.listen = "127.0.0.1:{free_port()}"\n')
    assert ask() == (ExitStatus.UNSOUND, {"agent"})
    (nowhere / "forewarn.toml").write_text(f"guest.listener = [{{ port = {free_port()} }}]\n")
    before = sorted(tmp_path.rglob("*"))
    assert ask() == (ExitStatus.UNSOUND, {"agent", "service"})
    assert sorted(tmp_path.rglob("*")) == before, "it writes nothing"
    assert ask("--service") == (ExitStatus.UNSOUND, {"service"})


def test_settings_that_cannot_be_used_are_a_finding(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (nowhere / "agent.toml").write_text("stauts = 1\n")
    assert main.execute(["doctor", "--agent"]) == ExitStatus.UNSOUND
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("fail")
    assert "stauts" in line
