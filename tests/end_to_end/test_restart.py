"""Restarts that no client notices: sockets that outlive the process, as systemd's do.

The test holds the listening sockets, as systemd does, and hands them to each process. Clients go on
meanwhile, and write down whatever goes wrong. How kept connections end is tests/guest's.
"""

import contextlib
import fcntl
import functools
import itertools
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import patience
import web
from end_to_end.running import Running
from forewarn.server import run

RESTARTS = 2
EVERY = 0.04
MACHINES = 2000
TAKE_OVER = """
import os, runpy, sys
for number, file in enumerate(map(int, sys.argv[1:3]), 3):
    os.dup2(file, number)
os.environ |= {"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid())}
sys.argv[:3] = ["forewarn"]
runpy.run_module("forewarn", run_name="__main__", alter_sys=True)
"""
"""What a forked service runs first."""
FIRST_FILE = 20
"""Where the test keeps its copies, so that none is at a number that the service gets."""


class Clients:
    """Clients in threads of their own, as long as a block lasts."""

    def __init__(self, service: Running) -> None:
        self._service = service
        self._numbers = itertools.count()
        self.faults: list[str] = []
        self.answered = Counter[str]()
        self.approved: dict[str, int] = {}
        """Events whose approval was answered 200, and their maintenances' numbers."""

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        polls = [functools.partial(self._poll, self._machine()) for _ in range(3)]
        acts = [*polls, self._approve, self._approve]
        with patience.meanwhile(*acts, every=EVERY) as self.faults:
            yield

    def _machine(self) -> str:
        """Return the name of one that no other client has."""
        return f"m{next(self._numbers)}"

    def _ask(self, machine: str, body: str | None = None) -> Any:
        method = "GET" if body is None else "POST"
        told = web.ask(self._service.guest_port, path(machine), method, body)
        assert told.status == 200

    def _poll(self, machine: str) -> None:
        self._ask(machine)
        self.answered["polls"] += 1

    def _approve(self) -> None:
        """Ask for maintenance as an operator, and approve it as its machine."""
        machine = self._machine()
        order = {"event_type": "Freeze", "machines": [machine]}
        asked = self._service.operator.ask("POST", "/v1/maintenances", order)
        assert asked.status == 201, asked.body
        event = asked.json["operations"][0]["events"][0]["id"]
        self._ask(machine, json.dumps({"StartRequests": [{"EventId": event}]}))
        self.approved[event] = asked.json["maintenance"]["number"]
        self.answered["approves"] += 1

    def go_on(self) -> None:
        """Return once each kind was answered twice by each of its clients, or has a fault."""
        enough = {kind: self.answered[kind] + 7 for kind in ("polls", "approves")}
        patience.until(
            lambda: self.faults or all(self.answered[kind] >= enough[kind] for kind in enough)
        )


def path(machine: str) -> str:
    return f"/vm/{machine}/metadata/scheduledevents?api-version=2020-07-01"


def test_no_client_notices_a_restart(folder: Path) -> None:
    service = Running(folder, connector="freeze_seconds = 0")
    with contextlib.ExitStack() as opened:
        guests = socket.create_server(("127.0.0.1", service.guest_port), backlog=4096)
        operators = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        operators.bind(str(service.socket))
        operators.listen(128)
        files = []
        for each in (guests, operators):
            opened.enter_context(each)
            files.append(fcntl.fcntl(each, fcntl.F_DUPFD, FIRST_FILE))
            opened.callback(os.close, files[-1])

        def start() -> None:
            service.start(program=("-c", TAKE_OVER, *map(str, files)), files=files)
            opened.callback(service.kill)

        start()
        fleet = {"machine": [{"name": f"m{number}"} for number in range(MACHINES)]}
        assert service.operator.ask("PUT", "/v1/fleet", fleet).status == 200
        clients = Clients(service)
        with clients.at_work():
            for _ in range(RESTARTS):
                clients.go_on()
                assert service.stop() == run.STOPPED
                start()
            clients.go_on()
        assert not clients.faults
        assert clients.approved
        for event, number in clients.approved.items():
            (operation,) = service.operator.get(f"/v1/history?maintenance={number}")["operations"]
            (recorded,) = operation["events"]
            assert (recorded["id"], recorded["approval"]["kind"]) == (event, "guest")
        assert service.stop() == run.STOPPED
        assert service.socket.exists()  # it is not the service's to remove
