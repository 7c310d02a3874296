"""Restarts that no client notices: sockets that outlive the process, as systemd's do, and a drain.

The test holds the listening sockets, as systemd does, and hands them to each process. A dozen
clients go on meanwhile, by new connections and by kept ones, and write down whatever goes wrong.
"""

import contextlib
import fcntl
import functools
import http.client
import itertools
import json
import os
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import patience
import web
from end_to_end.running import Running
from forewarn.server import run

RESTARTS = 2
MACHINES = 400
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


class Kept:
    """A machine's connection, which is used again for as long as the service keeps it."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience.SECONDS)
        self._path = path

    def ask(self, body: str | None = None, **headers: str) -> tuple[int, Any]:
        """Return an answer's status and body; whatever goes wrong is raised.

        A close between two requests is no mistake. A reset is one, and so is a byte that nobody
        asked for.
        """
        own = self._connection.sock
        if own is not None and select.select([own], [], [], 0)[0]:
            assert own.recv(1) == b""
            self._connection.close()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        method = "GET" if body is None else "POST"
        self._connection.request(method, self._path, body, web.METADATA | named)
        response = self._connection.getresponse()
        read = response.read()
        if response.headers["Connection"] == "close":
            self._connection.close()
        return response.status, json.loads(read) if read else None

    def close(self) -> None:
        self._connection.close()


class Clients:
    """Clients in threads of their own, until they are told to stop."""

    def __init__(self, service: Running) -> None:
        self._service = service
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._kept: list[Kept] = []
        self._numbers = itertools.count()
        self.faults: list[str] = []
        self.answered = Counter[str]()
        self.approved: dict[str, int] = {}
        """Events whose approval was answered 200, and their maintenances' numbers."""
        for _ in range(3):
            self._begin("polls", functools.partial(self._poll, self._path()[1]), every=0.02)
            self._begin("keeps", self._keep(), every=0.2)
            self._begin("waits", self._keep(304, If_None_Match="0", Prefer="wait=100"))
        self._begin("keeps for long", self._keep(), every=1)
        for keeps in (False, True):
            self._begin("approves", functools.partial(self._approve, keeps=keeps), every=0.04)
        self._begin("lists", functools.partial(self._operator, "GET", "/v1/events"), every=0.04)

    def _path(self) -> tuple[str, str]:
        """Return a machine that no other client has, and where it asks."""
        name = f"m{next(self._numbers)}"
        return name, f"/vm/{name}/metadata/scheduledevents?api-version=2020-07-01"

    def _poll(self, path: str) -> None:
        assert web.ask(self._service.guest_port, path).status == 200

    def _keep(self, status: int = 200, **headers: str) -> Callable[[], None]:
        self._kept.append(Kept(self._service.guest_port, self._path()[1]))
        guest = self._kept[-1]

        def ask() -> None:
            assert guest.ask(**headers)[0] == status

        return ask

    def _approve(self, *, keeps: bool) -> None:
        """Ask for maintenance as an operator, and approve it as its machine."""
        name, path = self._path()
        order = {"event_type": "Freeze", "machines": [name]}
        asked = self._operator("POST", "/v1/maintenances", order)
        event = asked["operations"][0]["events"][0]["id"]
        with contextlib.closing(Kept(self._service.guest_port, path)) as guest:
            if keeps:
                assert guest.ask()[1]["Events"][0]["EventId"] == event
            status, _ = guest.ask(json.dumps({"StartRequests": [{"EventId": event}]}))
        assert status == 200
        self.approved[event] = asked["maintenance"]["number"]

    def _operator(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._service.operator.ask(method, path, body)
        assert answer.status < 300, answer.body
        return answer.json

    def _begin(self, kind: str, ask: Callable[[], object], every: float = 0) -> None:
        def story() -> None:
            while True:
                try:
                    ask()
                except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
                    self.faults.append(f"{kind}: {error!r}")
                self.answered[kind] += 1
                if self._over.wait(every):
                    break

        self._threads.append(threading.Thread(target=story, daemon=True))
        self._threads[-1].start()

    def go_on(self, *kinds: str) -> None:
        """Return once each that asks often was answered twice, of which one is from its begin."""
        before = {kind: self.answered[kind] for kind in kinds or ("polls", "keeps", "approves")}
        patience.until(
            lambda: (
                self.faults
                or all(self.answered[kind] > count + 1 for kind, count in before.items())
            )
        )

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(patience.SECONDS)
            assert not thread.is_alive()
        for guest in self._kept:
            guest.close()


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
        for _ in range(RESTARTS):
            clients.go_on()
            assert service.stop() == run.STOPPED
            start()
        clients.go_on()
        clients.go_on("keeps for long")
        stopping = threading.Thread(target=clients.stop)
        stopping.start()
        assert service.stop() == run.STOPPED  # which answers those that wait
        start()
        stopping.join()
        assert not clients.faults
        assert len(clients.answered) == 6
        assert clients.approved
        for event, number in clients.approved.items():
            (operation,) = service.operator.get(f"/v1/history?maintenance={number}")["operations"]
            (recorded,) = operation["events"]
            assert (recorded["id"], recorded["approval"]["kind"]) == (event, "guest")
        assert service.stop() == run.STOPPED
        assert service.socket.exists()  # it is not the service's to remove
