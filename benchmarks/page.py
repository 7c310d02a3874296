"""What the page Now costs: how soon its first byte is there, and what guests notice of it.

460 operations, live and recent, lie in the twelve scopes that the timeline draws, so that all of
them are drawn. A window asks with the cookie of its log-in, over a connection that it keeps.
"""

import contextlib
import http.client
import multiprocessing
import os
import time
import urllib.parse
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import Any

import machine
from guests import Guests
from servers import WITHOUT_RATE
from service import Service, address_of, placed
from tables import Row, percentile, show

OPERATIONS = 460
SCOPES = 12
DOMAINS = 5
OF_SCOPE = 100
WINDOWS = 20
ASKING = 32
EACH_SECONDS = 0.1
"""How often a guest asks in the run with windows: 320 requests a second in all."""

CHANGE_SECONDS = 0.5
"""How often something changes meanwhile, so that every window asks for the page again."""

SETTLE_SECONDS = 60.0


class Window:
    """A browser's window on the page, without the browser."""

    def __init__(self, service: Service, port: int) -> None:
        link = urllib.parse.urlsplit(service.ask("POST", "/v1/tokens/page", {})["url"])
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        form = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"http://127.0.0.1:{port}",
        }
        self._connection.request("POST", "/login", f"token={link.fragment}", form)
        answer = self._connection.getresponse()
        assert answer.status == 303, (answer.status, answer.read())
        answer.read()
        self._cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]

    def load(self) -> tuple[float, float, int]:
        """Ask for the page; return when its first and last bytes came, and how many there were."""
        began = time.perf_counter()
        self._connection.request("GET", "/", headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        first = time.perf_counter() - began
        body = answer.read()
        assert answer.status == 200, (answer.status, body[:300])
        return first, time.perf_counter() - began, len(body)

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def filled(count: int) -> Iterator[tuple[Service, int]]:
    """Yield a service with so many machines and OPERATIONS of them, and the operators' port."""
    port = machine.free_port()
    settings = (
        f'{WITHOUT_RATE}queue = "start"\n[operator]\nlisten = "127.0.0.1:{port}"\n'
        "[connector.simulated]\nreboot_seconds = 0.1\n"
    )
    with Service(settings) as service:
        fleet = placed(count, of_scope=OF_SCOPE)
        for scope in fleet["availability_set"][:SCOPES]:
            scope["update_domains"] = DOMAINS  # so that there are lanes enough for all
        service.ask("PUT", "/v1/fleet", fleet)
        machines = [
            f"m{scope * OF_SCOPE + n}"
            for n in range(OPERATIONS // SCOPES + 1)
            for scope in range(SCOPES)
        ][:OPERATIONS]
        half = OPERATIONS // 2
        for name in machines[:half]:
            request(service, name, no_notice=True)
        until = time.monotonic() + SETTLE_SECONDS
        while len(service.history(status="Completed")) < half:
            assert time.monotonic() < until, "the operations do not end"
            time.sleep(0.1)
        for name in machines[half:]:
            request(service, name)
        yield service, port


def request(service: Service, name: str, **more: object) -> None:
    service.ask("POST", "/v1/maintenances", {"event_type": "Reboot", "machines": [name], **more})


def change(service: Service, number: int) -> None:
    """Change something, so that every window is to be drawn again."""
    if number % 2:
        service.ask("DELETE", "/v1/holds?kind=machine&name=m0")
    else:
        service.ask("POST", "/v1/holds", {"kind": "machine", "name": "m0", "reason": ""})


def first_bytes(service: Service, port: int, rounds: int) -> Row:
    """Load the page after a change each time, and once more."""
    window = Window(service, port)
    cold, _, _ = window.load()
    after, whole, again, cpu = [], [], [], []
    size = 0
    for number in range(rounds):
        change(service, number)
        before = service.cpu_seconds()
        first, last, size = window.load()
        cpu.append(service.cpu_seconds() - before)
        after.append(first * 1e3)
        whole.append(last * 1e3)
        again.append(window.load()[0] * 1e3)
    if rounds % 2:
        change(service, rounds)
    window.close()
    return {
        "first ms": round(cold * 1e3),
        "after a change p50 ms": round(percentile(after, 0.5), 1),
        "p99 ms": round(percentile(after, 0.99), 1),
        "whole p50 ms": round(percentile(whole, 0.5), 1),
        "CPU ms": round(percentile(cpu, 0.5) * 1e3, 1),
        "again p50 ms": round(percentile(again, 0.5), 1),
        "KiB": round(size / 1024),
    }


def _reload(folder: str, port: int, going: Event, over: Event, told: Any) -> None:
    """Be WINDOWS windows: each change is followed by a load of each, as fast as they come."""
    os.nice(10)  # the guests, who measure, share this core and go first
    service = Service.__new__(Service)  # the other process runs it; here its socket is enough
    service.folder = machine.Path(folder)
    windows = [Window(service, port) for _ in range(WINDOWS)]
    loads: list[float] = []
    number = 0
    while not (over.is_set() and loads):  # once at least, however busy the machine is
        if not (going.wait(0.1) or over.is_set()):
            continue
        began = time.monotonic()
        change(service, number)
        number += 1
        loads += load_together(windows)
        over.wait(max(0.0, CHANGE_SECONDS - (time.monotonic() - began)))
    if number % 2:
        change(service, number)
    told.put(loads)


def load_together(windows: list[Window]) -> list[float]:
    """Have all windows ask at once; return when each had the first byte."""
    began = time.perf_counter()
    for window in windows:
        window._connection.request("GET", "/", headers={"Cookie": window._cookie})  # noqa: SLF001
    found = []
    for window in windows:
        answer = window._connection.getresponse()  # noqa: SLF001
        found.append(time.perf_counter() - began)
        assert answer.status == 200
        answer.read()
    return found


def beside_guests(service: Service, port: int, count: int, seconds: float, rounds: int) -> Row:
    """Let guests ask, in turns with and without windows that load the page."""
    spawning = multiprocessing.get_context("fork")
    going, over, told = spawning.Event(), spawning.Event(), spawning.Queue()
    loading = spawning.Process(
        target=_reload, args=(str(service.folder), port, going, over, told), daemon=True
    )
    loading.start()
    step = count // ASKING
    found: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, float] = {False: 0.0, True: 0.0}
    asking = [address_of(n * step) for n in range(ASKING)]
    with contextlib.closing(Guests(service.port, asking)) as guests:
        guests.ask(ASKING * 4)
        asked = int(seconds / EACH_SECONDS) * ASKING
        for turn in range(2 * rounds):
            with_windows = bool(turn % 2)
            if with_windows:
                going.set()
                time.sleep(CHANGE_SECONDS)
            guests.seconds.clear()
            before = service.cpu_seconds()
            guests.ask(asked, each_seconds=EACH_SECONDS)
            cpu[with_windows] += service.cpu_seconds() - before
            found[with_windows] += guests.seconds
            going.clear()
            time.sleep(2 * CHANGE_SECONDS if with_windows else 0)
        assert set(guests.statuses) == {"200"}, guests.statuses
    over.set()
    loads = told.get(timeout=60)
    loading.join()
    share = 100 / (rounds * seconds)
    return {
        "GET p50 ms": round(percentile(found[False], 0.5) * 1e3, 2),
        "p99 ms": round(percentile(found[False], 0.99) * 1e3, 2),
        "CPU %": round(cpu[False] * share),
        "with windows p50 ms": round(percentile(found[True], 0.5) * 1e3, 2),
        "with windows p99 ms": round(percentile(found[True], 0.99) * 1e3, 2),
        "with windows CPU %": round(cpu[True] * share),
        "pages": len(loads),
        "page p50 ms": round(percentile(loads, 0.5) * 1e3, 1),
        "page p99 ms": round(percentile(loads, 0.99) * 1e3, 1),
    }


def missing() -> list[str]:
    return []


def run(*, quick: bool) -> dict[str, Any]:
    counts = [2000] if quick else [10_000, 100_000]
    loads, beside = [], []
    for count in counts:
        with filled(count) as (service, port):
            loads.append({"machines": count} | first_bytes(service, port, 3 if quick else 60))
            seconds, rounds = (0.5, 1) if quick else (5.0, 4)
            row = beside_guests(service, port, count, seconds, rounds)
            beside.append({"machines": count} | row)
    aim = "aim: 50 ms at 10,000 machines, 100 ms at 100,000"
    show(f"the first byte of Now with {OPERATIONS} operations; {aim}", loads)
    show(f"guests while {WINDOWS} windows load Now after each of two changes a second", beside)
    return {"first byte": loads, "guests": beside}
