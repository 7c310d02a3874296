"""What relays cost the service, and how soon the last of them knows of a change.

A simulated relay is a connection that asks as a real one does: it waits for a change of its host,
notes when that came, and asks again. All of them are one process on the load's core, which decodes
nothing.
"""

import asyncio
import contextlib
import resource
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import machine
from servers import WITHOUT_RATE
from service import Service, address_of
from tables import Row, percentile, show

LASTING = "[connector.simulated]\nfreeze_seconds = 3600\n"
OF_SCOPE = 100
"""Machines that share a document, each on another host."""

LATEST_SECONDS = 60.0
GUESTS = "[guest]\nconnections = 100\nwaiters = 90\n"
"""Guests ask the relays: nearly all of the service's open files are for these."""

SPARE_FILES = 2000
"""Open files of the service beside its relays': `GUESTS` and those that it keeps."""

AT_ONCE = 100
"""Relays that connect at the same time, as after a restart of a network switch."""


class SimulatedRelay(asyncio.Protocol):
    """One relay that waits for a change without end."""

    def __init__(self, fleet: "Relays", host: str, token: str) -> None:
        self._fleet = fleet
        self.host = host
        self._head = (
            f" HTTP/1.1\r\nHost: forewarn\r\nAuthorization: Bearer {token}\r\n"
            'forewarn-relay: {"version":"bench"}\r\n'
        )
        self.etag = ""
        self.bytes = 0
        """Of the documents that it was told."""
        self.answers = 0
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.ask()

    def ask(self) -> None:
        """Ask for the host, as soon as it is another one."""
        assert self._transport is not None
        has = f"If-None-Match: {self.etag}\r\n" if self.etag else ""
        self._transport.write(f"GET /v1/relay/host{self._head}{has}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = bytes(self._data[:end]).decode().split("\r\n")
        headers = {
            name.lower(): text.strip() for name, _, text in (x.partition(":") for x in lines)
        }
        length = int(headers.get("content-length", "0"))
        if len(self._data) < end + 4 + length:
            return
        status = int(first.split(" ", 2)[1])
        body = bytes(self._data[end + 4 : end + 4 + length])
        del self._data[: end + 4 + length]
        self.answers += 1
        assert status in {200, 304}, (status, body[:300])
        if status == 200:
            self.etag = headers["etag"]
            self.bytes += length
            self._fleet.heard(self)
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._fleet.closing, f"the service closed the connection of {self.host}: {exc}"

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


class Relays:
    """Many simulated relays on one loop."""

    def __init__(self, port: int, tokens: dict[str, str]) -> None:
        self._port = port
        self._tokens = tokens
        self.all: list[SimulatedRelay] = []
        self.closing = False
        self._missing: set[str] = set()
        self._all_heard = asyncio.Event()
        self.latest = 0.0

    def heard(self, relay: SimulatedRelay) -> None:
        """A relay knows of a change."""
        self._missing.discard(relay.host)
        if not self._missing:
            self.latest = time.perf_counter()
            self._all_heard.set()

    def expect(self, hosts: Sequence[str]) -> None:
        """Wait for a change of these from now on."""
        self._missing = set(hosts)
        self._all_heard.clear()

    async def all_heard(self) -> None:
        """Return when each that is expected to knows of one."""
        async with asyncio.timeout(LATEST_SECONDS):
            await self._all_heard.wait()

    async def connect(self) -> None:
        """Connect all, and return when each has its host."""
        loop = asyncio.get_running_loop()
        self.expect(list(self._tokens))
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(host: str, token: str) -> None:
            relay = SimulatedRelay(self, host, token)
            self.all.append(relay)
            async with gate:
                await loop.create_connection(lambda: relay, "127.0.0.1", self._port)

        await asyncio.gather(*(one(*pair) for pair in self._tokens.items()))
        await self.all_heard()

    def close(self) -> None:
        self.closing = True
        for relay in self.all:
            relay.close()


def spread_over(hosts: int, of_host: int) -> dict[str, Any]:
    """A fleet in which the machines of a scope are on different hosts."""
    machines = [
        {"name": f"m{n}", "address": address_of(n), "host": f"h{n % hosts}"}
        for n in range(hosts * of_host)
    ]
    return {
        "availability_set": [
            {
                "name": f"s{first}",
                "update_domains": 1,
                "machines": machines[first : first + OF_SCOPE],
            }
            for first in range(0, len(machines), OF_SCOPE)
        ]
    }


def tokens(service: Service, hosts: int) -> dict[str, str]:
    """Have a token made for each host."""

    def one(number: int) -> tuple[str, str]:
        made = service.ask("POST", "/v1/relays/tokens", {"host": f"h{number}"})
        return f"h{number}", made["token"]

    with ThreadPoolExecutor(16) as threads:
        return dict(threads.map(one, range(hosts)))


async def _asked(service: Service, number: int) -> float:
    """Have a machine's Freeze announced, and return when the operator was answered."""
    body = {"event_type": "Freeze", "machines": [f"m{number}"]}
    await asyncio.to_thread(service.ask, "POST", "/v1/maintenances", body)
    return time.perf_counter()


async def _measured(  # noqa: PLR0917 - as in a row
    service: Service, port: int, hosts: int, of_host: int, idle_seconds: float, changes: int
) -> Row:
    began_kib = service.memory_kib()
    relays = Relays(port, tokens(service, hosts))
    before, began = service.cpu_seconds(), time.perf_counter()
    await relays.connect()
    connected = time.perf_counter() - began
    used = service.cpu_seconds() - before
    with contextlib.closing(relays):
        before, began = service.cpu_seconds(), time.perf_counter()
        answers = sum(relay.answers for relay in relays.all)
        await asyncio.sleep(idle_seconds)
        idle = (service.cpu_seconds() - before) / (time.perf_counter() - began)
        answers = sum(relay.answers for relay in relays.all) - answers
        memory = service.memory_kib() - began_kib
        machines = hosts * of_host
        told, cost, sent = [], [], []
        scopes = max(1, machines // OF_SCOPE)
        for number in range(changes):
            first = number % scopes * OF_SCOPE
            last = min(machines, first + OF_SCOPE)
            concerned = {f"h{n % hosts}" for n in range(first, last)}
            relays.expect(sorted(concerned))
            before, had = service.cpu_seconds(), sum(relay.bytes for relay in relays.all)
            answered = await _asked(service, first + number // scopes)
            await relays.all_heard()
            told.append(relays.latest - answered)
            cost.append(service.cpu_seconds() - before)
            sent.append(sum(relay.bytes for relay in relays.all) - had)
    return {
        "relays": hosts,
        "machines": machines,
        "all connected s": round(connected, 1),
        "CPU s": round(used, 1),
        "KiB each": round(memory / hosts, 1),
        "idle % of a core": round(100 * idle, 2),
        "asked meanwhile": answers,
        "concerned": len(concerned),
        "KiB told": round(statistics.median(sent) / 1024, 1),
        "last p50 ms": round(statistics.median(told) * 1000, 1),
        "last p99 ms": round(percentile(told, 0.99) * 1000, 1),
        "CPU ms": round(statistics.median(cost) * 1000, 1),
    }


def waiting(hosts: int, of_host: int, idle_seconds: float, changes: int) -> Row:
    """Let so many relays wait, and tell what they cost and how soon all have a change."""
    port = machine.free_port()
    settings = f'{LASTING}{WITHOUT_RATE}\n[relay]\nlisten = "127.0.0.1:{port}"\n{GUESTS}'
    with Service(settings) as service:
        service.ask("PUT", "/v1/fleet", spread_over(hosts, of_host))
        return asyncio.run(_measured(service, port, hosts, of_host, idle_seconds, changes))


def missing() -> list[str]:
    return []


def run(*, quick: bool) -> dict[str, Any]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cases = [(20, 5, 1.0, 3)] if quick else [(1000, 100, 60.0, 50), (10_000, 1, 60.0, 50)]
    rows = []
    for hosts, of_host, idle_seconds, changes in cases:
        if hosts + SPARE_FILES > hard:
            print(f"{hosts} relays need {hosts + SPARE_FILES} open files, and {hard} are allowed")
            continue
        rows.append(waiting(hosts, of_host, idle_seconds, changes))
    show("simulated relays that wait at one service, and a change for the hosts of a scope", rows)
    return {"waiting": rows}
