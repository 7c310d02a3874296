"""Restarts that no client notices: sockets that outlive the process, as systemd's do, and a drain.

The test holds the listening sockets, as systemd does, and hands them to each process. A dozen
clients go on meanwhile, by new connections and by kept ones, and write down whatever goes wrong.
"""

import contextlib
import fcntl
import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.agents import until
from end_to_end.running import Running
from forewarn.server import run

RESTARTS = 2
MACHINES = 400
OFTEN = ("polls", "keeps", "approves", "lists")
"""Clients that are answered several times between two restarts."""
SWIFT = "freeze_seconds = 0"
TAKE_OVER = """
import os, runpy, sys
for number, file in enumerate(map(int, sys.argv[1:3]), 3):
    os.dup2(file, number)
os.environ |= {"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid())}
sys.argv[:3] = ["forewarn"]
runpy.run_module("forewarn", run_name="__main__", alter_sys=True)
"""
"""What a forked service runs first."""
OPERATOR = "operator"
FIRST_FILE = 20
"""Where the test keeps its copies, so that none is at a number that the service gets."""


class Systemd:
    """Holds a service's listening sockets, and starts it with them."""

    def __init__(self, service: Running) -> None:
        self._service = service
        guests = socket.create_server(("127.0.0.1", service.guest_port), backlog=4096)
        operators = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        operators.bind(str(service.socket))
        operators.listen(128)
        self._sockets = (guests, operators)
        self._files = [fcntl.fcntl(each, fcntl.F_DUPFD, FIRST_FILE) for each in self._sockets]

    def start(self) -> None:
        numbers = [str(number) for number in self._files]
        self._service.start(program=("-c", TAKE_OVER, *numbers), files=self._files)

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        for number in self._files:
            with contextlib.suppress(OSError):
                os.close(number)


class Guest:
    """Asks as one machine: by one connection as long as it is kept, or by a new one each time."""

    def __init__(self, port: int, name: str, *, keeps: bool) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience.SECONDS)
        self._path = f"/vm/{name}/metadata/scheduledevents?api-version=2020-07-01"
        self._keeps = keeps

    def ask(self, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return an answer's status and body; whatever goes wrong is raised."""
        if not self._keeps:
            self._connection.close()
        told = None if body is None else json.dumps(body)
        method = "GET" if body is None else "POST"
        sent = {
            "Metadata": "true",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        self._connection.request(method, self._path, body=told, headers=sent)
        response = self._connection.getresponse()
        read = response.read()
        if response.headers["Connection"] == "close":
            self._connection.close()
        return response.status, json.loads(read) if read else None

    def notice_a_close(self) -> None:
        """Drop the connection if it was closed between two requests, which is no mistake.

        A reset is one, and so is a byte that nobody asked for.
        """
        own = self._connection.sock
        if own is not None and select.select([own], [], [], 0)[0]:
            assert own.recv(1) == b""
            self._connection.close()

    def close(self) -> None:
        self._connection.close()


class Clients:
    """Clients in threads of their own, until they are told to stop."""

    def __init__(self, service: Running) -> None:
        self._service = service
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._numbers = iter(range(MACHINES))
        self.faults: list[str] = []
        self.answered: dict[str, int] = {}
        self.approved: dict[str, int] = {}
        """Events whose approval was answered 200, and their maintenances' numbers."""

    def guest(self, kind: str, *, keeps: bool, every: float) -> None:
        """A guest that polls."""
        name = f"m{next(self._numbers)}"

        def ask(guest: Guest) -> None:
            if keeps:
                guest.notice_a_close()
            assert guest.ask()[0] == 200

        self._go_on(kind, name, ask, keeps=keeps, every=every)

    def waiter(self) -> None:
        """A guest that waits for news that never come, by one connection as long as it is kept."""
        name = f"m{next(self._numbers)}"

        def ask(guest: Guest) -> None:
            guest.notice_a_close()
            assert guest.ask(If_None_Match="0", Prefer="wait=100")[0] == 304

        self._go_on("waits", name, ask, keeps=True, every=0)

    def approver(self, *, keeps: bool) -> None:
        """An operator who asks for maintenance, and its machine, which approves it."""

        def approve(_: Guest) -> None:
            name = f"m{next(self._numbers)}"
            asked = self._operator(
                "POST", "/v1/maintenances", {"event_type": "Freeze", "machines": [name]}
            )
            event = asked["operations"][0]["events"][0]["id"]
            with contextlib.closing(Guest(self._service.guest_port, name, keeps=keeps)) as guest:
                if keeps:
                    assert guest.ask()[1]["Events"][0]["EventId"] == event
                status, _ = guest.ask({"StartRequests": [{"EventId": event}]})
            assert status == 200
            self.approved[event] = asked["maintenance"]["number"]

        self._go_on("approves", OPERATOR, approve, keeps=False, every=0.04)

    def operator(self) -> None:
        """An operator's tool that lists, by a new connection each time."""
        self._go_on(
            "lists",
            OPERATOR,
            lambda _: self._operator("GET", "/v1/events"),
            keeps=False,
            every=0.04,
        )

    def go_on(self) -> None:
        """Return once each that asks often was answered twice, of which one is from its begin."""
        before = {kind: self.answered.get(kind, 0) for kind in OFTEN}
        until(
            lambda: (
                self.faults
                or all(self.answered.get(kind, 0) > count + 1 for kind, count in before.items())
            )
        )

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(patience.SECONDS)
            assert not thread.is_alive()

    def _operator(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._service.operator.ask(method, path, body)
        assert answer.status < 300, answer.body
        return answer.json

    def _go_on(
        self, kind: str, name: str, ask: Callable[[Guest], object], *, keeps: bool, every: float
    ) -> None:
        def story() -> None:
            guest = Guest(self._service.guest_port, name, keeps=keeps)
            while True:
                try:
                    ask(guest)
                except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
                    self.faults.append(f"{kind} {'keeps' if keeps else 'new'}: {error!r}")
                    guest.close()
                    time.sleep(0.05)
                self.answered[kind] = self.answered.get(kind, 0) + 1
                if self._over.wait(every):
                    break
            guest.close()

        thread = threading.Thread(target=story, daemon=True)
        self._threads.append(thread)
        thread.start()


@pytest.fixture
def service(folder: Path) -> Iterator[Running]:
    made = Running(folder, connector=SWIFT)
    yield made
    with contextlib.suppress(Exception):
        made.kill()


def test_no_client_notices_a_restart(service: Running) -> None:
    systemd = Systemd(service)
    systemd.start()
    fleet = {"machine": [{"name": f"m{number}"} for number in range(MACHINES)]}
    assert service.operator.ask("PUT", "/v1/fleet", fleet).status == 200
    clients = Clients(service)
    for _ in range(3):
        clients.guest("polls", keeps=False, every=0.02)
        clients.guest("keeps", keeps=True, every=0.2)
        clients.waiter()
    clients.guest("keeps for long", keeps=True, every=1)
    clients.approver(keeps=False)
    clients.approver(keeps=True)
    clients.operator()
    for _ in range(RESTARTS):
        clients.go_on()
        assert service.stop() == run.STOPPED
        systemd.start()
    clients.go_on()
    until(lambda: clients.answered["keeps for long"] > 1)
    clients_stopped = threading.Thread(target=clients.stop)
    clients_stopped.start()
    assert service.stop() == run.STOPPED  # which answers those that wait
    systemd.start()
    clients_stopped.join()
    assert not clients.faults
    assert set(clients.answered) == {*OFTEN, "keeps for long", "waits"}
    assert clients.approved
    for event, number in clients.approved.items():
        (operation,) = service.operator.get(f"/v1/history?maintenance={number}")["operations"]
        (recorded,) = operation["events"]
        assert (recorded["id"], recorded["approval"]["kind"]) == (event, "guest")
    assert service.stop() == run.STOPPED
    assert service.socket.exists()  # it is not the service's to remove
    systemd.close()
