"""How soon machines that wait know of a change, and what a waiting machine costs.

All of them share one document. The times count from the instant in which the operator has its
answer to the instant in which a machine has read the new document whole; what is below zero was
there before the operator knew. This process reads all answers itself, at some microseconds each.
"""

import json
import select
import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any

from guests import connected, get
from servers import WITHOUT_RATE
from service import Service, address_of, placed
from tables import Row, show, spread

WAIT_SECONDS = 120
BATCH = 500
"""Machines that connect before the service is seen to have taken them in: it has 1024 places."""

ROUNDS = 5
LATEST_SECONDS = 30.0


class Waiters:
    """Machines that wait for news.

    Args:
        services: Run, and know the fleet; the machines ask them in turns.
        count: How many wait.
        operator: Whom the operator asks; the first of them if left out.
    """

    def __init__(
        self, services: Sequence[Service], count: int, operator: Service | None = None
    ) -> None:
        self._services = services
        self._operator = operator or services[0]
        self._waiting()  # so that what asking takes is there already
        self.began_at_kib = services[0].memory_kib()
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for number in range(count):
            made = connected(services[number % len(services)].port, address_of(number))
            self._sockets[made.fileno()] = made
            self._poll.register(made, select.EPOLLIN)
            made.send(self._request(0))
            if number % BATCH == BATCH - 1:
                self._settle(number + 1)
        self._settle(count)
        self.waiting_at_kib = services[0].memory_kib()

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._poll.close()

    def _request(self, incarnation: int) -> bytes:
        return get(f"If-None-Match: {incarnation}", f"Prefer: wait={WAIT_SECONDS}")

    def _settle(self, count: int) -> None:
        """Return when so many wait, and see that nobody was answered."""
        until = time.monotonic() + LATEST_SECONDS
        while self._waiting() < count:
            assert time.monotonic() < until, "not all of them wait"
        assert not self._poll.poll(0), "somebody was answered before there was news"

    def _waiting(self) -> float:
        return sum(service.metric("forewarn_guest_waiters") for service in self._services)

    def hear(self, number: int) -> tuple[list[float], float]:
        """Have a machine's reboot announced, and return when each of all read of it.

        Args:
            number: The machine, which has none announced yet.

        Returns:
            Seconds after the operator's answer, in order, and how long the operator waited.
        """
        body = json.dumps({"event_type": "Reboot", "machines": [f"m{number}"]})
        operator = socket.socket(socket.AF_UNIX)
        operator.connect(str(self._operator.folder / "operator.sock"))
        head = "POST /v1/maintenances HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        request = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        self._poll.register(operator, select.EPOLLIN)
        asked = time.perf_counter()
        operator.send(request)
        answered = 0.0
        heard: dict[int, float] = {}
        said: dict[int, bytes] = {}
        while len(heard) < len(self._sockets) or not answered:
            ready = self._poll.poll(LATEST_SECONDS, len(self._sockets) + 1)
            assert ready, f"{len(heard)} of {len(self._sockets)} machines heard of it"
            for file, _ in ready:
                if file == operator.fileno():
                    assert operator.recv(65536).startswith(b"HTTP/1.1 201 ")
                    answered = time.perf_counter()
                    self._poll.unregister(operator)
                    continue
                said[file] = said.get(file, b"") + self._sockets[file].recv(65536)
                if said[file].endswith(b"]}"):
                    heard[file] = time.perf_counter()
        operator.close()
        incarnation = number + 1
        for file, answer in said.items():
            assert answer.startswith(b"HTTP/1.1 200 "), answer[:100]
            assert b'{"DocumentIncarnation":%d,' % incarnation in answer, answer[-200:]
            self._sockets[file].send(self._request(incarnation))
        self._settle(len(self._sockets))
        return sorted(moment - answered for moment in heard.values()), answered - asked


def measured(count: int, rounds: int) -> Row:
    with Service(WITHOUT_RATE) as service:
        service.ask("PUT", "/v1/fleet", placed(max(count, rounds), of_scope=max(count, rounds)))
        waiters = Waiters([service], count)
        heard: list[list[float]] = []
        operator: list[float] = []
        for number in range(rounds):
            moments, waited = waiters.hear(number)
            heard.append(moments)
            operator.append(waited)
        waiters.close()
    kib = waiters.waiting_at_kib - waiters.began_at_kib

    def at(share: float) -> str:
        return spread([each[int(share * (count - 1))] * 1e3 for each in heard], 1)

    return {
        "waiting": count,
        "operator ms": round(statistics.median(operator) * 1e3, 1),
        "first ms after": at(0.0),
        "median ms after": at(0.5),
        "last ms after": at(1.0),
        "KiB each": round(kib / count, 2) if count >= BATCH else "",
    }


def missing() -> list[str]:
    return []


def run(*, quick: bool) -> dict[str, Any]:
    counts = [1, 100] if quick else [1, 100, 1000, 9000]
    rows = [measured(count, 1 if quick else ROUNDS) for count in counts]
    aim = "aim: one within 2 ms, the last of 9,000 within 250 ms, 2 KiB each"
    show(f"news to machines that wait; {aim}", rows)
    return {"news": rows}
