"""Commands in stories, in this process, against a service that is in it too."""

import io
import json
import logging
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

import patience
import stories
from cli.test_mistakes import UNREADABLE
from client.scripted import message, serving
from forewarn.agent import status
from forewarn.agent.rules import BUILT_IN
from forewarn.cli import main
from forewarn.cli.doctor import Finding, Level, examine
from forewarn.clock import ManualClock
from forewarn.store.sqlite import InMemoryStore
from forewarn.testing import Emulator
from server.exchange import Exchanges
from server.running import NOON, Running, settings_in
from tcp_proxy import TcpProxy

PYTHON = """#!{python}
import json, subprocess, sys, threading
told = json.load(open({folder!r} + "/told.json"))
with open({folder!r} + "/asked.json", "w") as asked:
    json.dump([sys.argv[3:], sys.stdin.read()], asked)
subprocess.run(told.pop("meanwhile", "true").split(), stdout=2, check=True)
threading.Event().wait(told.pop("sleep", 0))
print(json.dumps(told))
sys.exit(told.get("status", 1 if "error" in told else 0))
"""
"""A Python that reads what hosts have from a file, instead of running our program."""


class Commands(Exchanges):
    """A story so far, with the files of its commands."""

    def __init__(
        self,
        folder: Path,
        service: Running,
        capsys: pytest.CaptureFixture[str],
        environment: pytest.MonkeyPatch,
        opened: ExitStack,
    ) -> None:
        super().__init__(service, ManualClock(NOON), self.command)
        self.folder, self.capsys = folder, capsys
        self.environment, self.opened = environment, opened
        python = folder / "python"
        python.write_text(PYTHON.format(python=sys.executable, folder=str(folder)))
        python.chmod(0o755)
        url = service.opened.operators[1]
        self.bound |= {"python": str(python), "url": url, "place": url.removeprefix("http://")}
        self.bound |= {"port": url.rpartition(":")[2], "built_in": BUILT_IN.name}
        self.bound |= {"unreadable": UNREADABLE, "bin": sysconfig.get_path("scripts")}
        self.bound |= {"folder": str(folder), "socket": service.settings.operator.socket}

    def carry_out(self, row: str) -> None:
        verb, _, rest = row.partition(" ")
        if verb == "hosts":
            (self.folder / "told.json").write_text(self.spelled(rest))
        elif verb == "asked":
            what, _, document = rest.partition(" ")
            asked, given = json.loads((self.folder / "asked.json").read_text())
            assert (asked, json.loads(given)) == ([what], json.loads(document))
        elif verb == "wrote":
            name, _, expected = rest.partition(" -> ")
            text = (self.folder / name).read_text() if (self.folder / name).exists() else None
            is_json = text and text.startswith("{") and not name.endswith("lines")
            told = json.loads(text) if is_json else {}
            self.compare({**told, "text": text}, expected)
        else:
            super().carry_out(row)

    def command(self, *argv: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = main.execute(list(argv))
        self.printed = self.capsys.readouterr()
        return status, self.printed.out, self.printed.err

    def file(self, name: str, text: str, mode: str = "644") -> None:
        self.write(name, self.spelled(text).replace(" ; ", "\n"), mode)

    def program(self, name: str, script: str) -> None:
        """Write a program that runs in the folder."""
        self.write(name, f"#!/bin/sh\ncd '{self.folder}'\n{script}\n", "700")

    def write(self, name: str, text: str, mode: str = "644") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(int(mode, 8))
        self.bound[path.name] = str(path)

    def save(self, name: str) -> None:
        """Keep what the last command printed in a file."""
        self.write(name, self.printed.out)

    def full_disk(self) -> None:
        """Have a stdout that takes nothing."""
        stdout = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
        self.opened.enter_context(self.environment.context()).setattr(sys, "stdout", stdout)

    def losing(self, times: str) -> None:
        """Have a way to the service on which answers to requests with a key are lost."""
        proxy = self.opened.enter_context(TcpProxy(int(self.bound["port"])))
        proxy.lose_answers(b"idempotency_key", int(times))
        self.bound["lossy"] = f"http://127.0.0.1:{proxy.port}"

    # A user's own folder and environment.

    def login(self, mode: str) -> None:
        """The login that is kept is for whom its mode says."""
        assert (self.folder / "forewarn" / "login").stat().st_mode & 0o777 == int(mode, 8)

    def kept_login(self, *lines: str) -> None:
        self.write("forewarn/login", self.spelled("\n".join(lines)), "600")

    def typed(self, text: str) -> None:
        given = io.BytesIO(f"{self.spelled(text)}\n".encode())
        self.environment.setattr(sys, "stdin", io.TextIOWrapper(given))

    def given(self, name: str, value: str = "") -> None:
        """Have a variable of the environment, or none."""
        if value:
            self.environment.setenv(name, self.spelled(value))
        else:
            self.environment.delenv(name)

    def without(self, library: str) -> None:
        """Have a library that is not installed: None is an import system's word for that."""
        self.environment.setitem(sys.modules, library, None)

    def everything(self) -> list[Any]:
        """All files."""
        return sorted(self.folder.rglob("*"))

    # What a doctor looks at.

    def emulate(self, name: str) -> None:
        """Have an endpoint that knows this machine and no other."""
        endpoint = self.opened.enter_context(Emulator()).machine(name).endpoint
        self.bound |= {"endpoint": endpoint, "stranger": endpoint.replace(name, "nobody")}

    def agent_tells(self, **facts: str) -> None:
        """Have an agent whose status port tells this, and is well but for that."""
        tree = {"machine": "web-0", "dry_run": False, "ready": True, "trouble": ""}
        tree |= {"endpoint": {"answers": True, "answered_seconds_ago": 1.0}}
        tree |= {"events": [], "standing": []}
        tree |= {name: yaml.safe_load(fact) for name, fact in facts.items()}
        assert list(status.lines(tree))  # it has the fields that a real one has
        told = message(200, json.dumps(tree).encode())
        port = self.opened.enter_context(serving(lambda *_: told)).port
        self.bound |= {"agent": f"127.0.0.1:{port}", "agent_port": str(port)}

    def cursor(self) -> None:
        (self.bound["cursor"],) = re.findall(r"--cursor (\S+),", self.printed.err)


FILES = ("address", "agent", "commands", "connector", "doctor", "login", "record", "unit")
STORIES = [
    pytest.param(f"{name}.txt", *each.values, id=f"{name}.txt {each.id}")
    for name in FILES
    for each in stories.stories_beside(__file__, f"{name}.txt")
]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    # What the service logs in this process would stand between the lines of a command.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore(), ManualClock(NOON)) as running:
        for name in ("FOREWARN_TOKEN_FILE", "FOREWARN_CONFIG"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path))
        monkeypatch.setenv("STATE_DIRECTORY", os.fspath(tmp_path / "state"))
        monkeypatch.setenv("FOREWARN_OPERATOR", running.settings.operator.socket)
        yield running


@pytest.mark.parametrize(("name", "rows"), STORIES)
def test_the_story_holds(
    tmp_path: Path,
    service: Running,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    rows: stories.Rows,
) -> None:
    with ExitStack() as opened:
        assert Commands(tmp_path, service, capsys, monkeypatch, opened).play(name, rows)


# Beside the stories.


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
