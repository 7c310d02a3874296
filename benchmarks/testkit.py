"""What a test of a handler waits for: the emulator beside a service of its own and usual mocks.

Four figures: until a server is ready, until a client has read the first event of it, until fifteen
minutes of notice are over and a client reads Started, and until nothing of it is left. Each server
begins anew for each round, as a fixture does. The mocks are some sixty lines each, as people write
them; they have no clock, so nothing starts by its notice there.
"""

import contextlib
import http.client
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import machine
from forewarn.testing import Emulator
from service import Service, standalone
from tables import Row, show, spread

CONTESTANTS: Final = Path(__file__).parent / "contestants"
EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
MOCKS: Final = {"flask": "mock_flask.py", "aiohttp": "mock_aiohttp.py"}
SCALE: Final = 90.0
"""Of the service's clock, as in the demo: fifteen minutes last ten seconds."""
READY_SECONDS: Final = 30.0

Schedule = Callable[[], None]
Pass = Callable[[], None]


def missing() -> list[str]:
    """Nothing that the case cannot do without; a mock that is not installed is named in a row."""
    return []


def get(port: int, path: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Metadata": "true"})
        document: dict[str, Any] = json.loads(connection.getresponse().read())
        return document
    finally:
        connection.close()


Ready = tuple[int, str, Schedule, Pass | None]
"""The port, the path of the document, what announces a reboot, and what lets 15 minutes pass."""


@contextlib.contextmanager
def emulator() -> Iterator[Ready]:
    with Emulator() as started:
        started.machine("m0")
        port = int(started.endpoint.rpartition(":")[2])

        def schedule() -> None:
            started.schedule("Reboot", "m0")

        yield port, EVENTS, schedule, lambda: started.advance("15m")


@contextlib.contextmanager
def service() -> Iterator[Ready]:
    with Service(f"[clock]\nscale = {SCALE}\n") as running:
        running.ask("PUT", "/v1/fleet", standalone(1))
        path = f"/vm/m0{EVENTS}"

        def schedule() -> None:
            running.ask("POST", "/v1/maintenances", {"event_type": "Reboot", "machines": ["m0"]})

        def wait() -> None:
            while get(running.port, path)["Events"][0]["EventStatus"] != "Started":
                time.sleep(0.05)  # within the rate of a machine

        yield running.port, path, schedule, wait


def mock(program: str) -> Callable[[], contextlib.AbstractContextManager[Ready]]:
    @contextlib.contextmanager
    def run() -> Iterator[Ready]:
        port = machine.free_port()
        process = subprocess.Popen(
            [sys.executable, str(CONTESTANTS / program), str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + READY_SECONDS
        while True:
            try:
                get(port, EVENTS)
                break
            except OSError:
                assert process.poll() is None, f"{program} has ended"
                assert time.monotonic() < until, f"{program} does not answer"
                time.sleep(0.005)

        def schedule() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/schedule")
            connection.getresponse().read()
            connection.close()

        try:
            yield port, EVENTS, schedule, None
        finally:
            process.kill()
            process.wait()

    return run


def one(contestant: Callable[[], contextlib.AbstractContextManager[Ready]]) -> dict[str, float]:
    """Milliseconds of each step of one round."""
    took = {}
    running = contestant()
    began = time.monotonic()
    port, path, schedule, wait = running.__enter__()
    took["ready"] = (time.monotonic() - began) * 1000
    schedule()
    (event,) = get(port, path)["Events"]
    assert event["EventStatus"] == "Scheduled"
    took["first event"] = (time.monotonic() - began) * 1000
    if wait is not None:
        waited = time.monotonic()
        wait()
        (event,) = get(port, path)["Events"]
        assert event["EventStatus"] == "Started"
        took["15 minutes"] = (time.monotonic() - waited) * 1000
    ended = time.monotonic()
    running.__exit__(None, None, None)
    took["gone"] = (time.monotonic() - ended) * 1000
    return took


def run(*, quick: bool) -> dict[str, Any]:
    rows: list[Row] = []
    contestants = {"emulator": emulator, "a service of its own": service}
    contestants |= {
        f"a mock on {name}": mock(program)
        for name, program in MOCKS.items()
        if importlib.util.find_spec(name)
    }
    one(emulator)  # imports and first calls, which a run of tests pays once
    for name, contestant in contestants.items():
        rounds = 1 if quick else 200 if name == "emulator" else 5
        found = [one(contestant) for _ in range(rounds)]
        row: Row = {"server": name, "rounds": rounds}
        for step in ("ready", "first event", "15 minutes", "gone"):
            figures = [each[step] for each in found if step in each]
            row[f"{step} ms"] = spread(figures, 2) if figures else "no clock"
        rows.append(row)
    rows += [
        {"server": f"a mock on {name}", "rounds": "not installed"}
        for name in MOCKS
        if not importlib.util.find_spec(name)
    ]
    show("until a test has its server, an event, the end of the notice, and nothing left", rows)
    return {"rows": rows}
