"""What the client library costs a machine, beside the usual polling loop on requests.

Four figures: how long its import takes, what memory a watch holds, what processor it uses while it
waits and while it asks once a second, and how long after a change a handler's first line runs.
Contestants take turns within a round. What Python alone takes is a row of its own.
"""

import contextlib
import importlib.util
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import machine
from servers import WITHOUT_RATE
from service import Service, standalone
from tables import Row, percentile, show, spread

CONTESTANTS: Final = Path(__file__).parent / "contestants"
PROGRAMS: Final = {
    "forewarn.Client": "watch_sync.py",
    "forewarn.AsyncClient": "watch_asyncio.py",
    "requests, each second": "poll_requests.py",
}
IMPORTS: Final = {
    "Python alone": "pass",
    "forewarn.Client": "from forewarn import Client",
    "forewarn.AsyncClient": "from forewarn import AsyncClient",
    "requests": "import requests",
}
TIMED: Final = (
    "import time; began, used = time.perf_counter(), time.process_time(); {}; "
    "print(time.perf_counter() - began, time.process_time() - used); "
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"
)
TOLD_SECONDS: Final = 10.0
SETTLED_SECONDS: Final = 1.5
"""After a program's first line of work: what its start costs is not what its watch costs."""

APART_SECONDS: Final = 0.3
"""Between two changes: the client asks for no document sooner than 50 ms after another."""


class Program:
    """One contestant, running and watching."""

    def __init__(self, name: str, endpoint: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, str(CONTESTANTS / PROGRAMS[name]), endpoint],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def told(self) -> float | None:
        """The time at which its handler was told of a change; None if it is not told in time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], TOLD_SECONDS)
        if not ready:
            return None
        line = os.read(self._process.stdout.fileno(), 65536).split()[0]
        return int(line) / 1e9

    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(self._process.pid)

    def memory_mib(self) -> float:
        return machine.memory_kib(self._process.pid) / 1024

    def alive(self) -> bool:
        return self._process.poll() is None


@contextlib.contextmanager
def still() -> Iterator[str]:
    """An endpoint that does not wait; its address."""
    command = [sys.executable, str(CONTESTANTS / "still.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        yield f"http://127.0.0.1:{serving.stdout.readline().strip()}"
        serving.kill()


def imports(rounds: int) -> list[Row]:
    took: dict[str, list[float]] = {name: [] for name in IMPORTS}
    cost: dict[str, list[float]] = {name: [] for name in IMPORTS}
    held: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for number in range(rounds + 1):
        for name, statement in IMPORTS.items():
            command = [sys.executable, "-c", TIMED.format(statement)]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, processor, kib = map(float, ran.stdout.split())
            if number:  # the first round fills the caches
                took[name].append(seconds * 1e3)
                cost[name].append(processor * 1e3)
                held[name].append(kib / 1024)
    theirs = statistics.median(cost["requests"])
    return [
        {
            "import": name,
            "ms": spread(took[name], 1),
            "ms of processor": spread(cost[name], 1),
            "of requests'": round(statistics.median(cost[name]) / theirs, 2),
            "MiB afterwards": spread(held[name], 1),
        }
        for name in IMPORTS
    ]


def idling(seconds: float, endpoint: str, doing: str, names: list[str]) -> list[Row]:
    """What programs use that are told nothing."""
    with contextlib.ExitStack() as running:
        programs = [running.enter_context(Program(name, endpoint)) for name in names]
        time.sleep(SETTLED_SECONDS * (2 if seconds > 10 else 1))
        before = [program.cpu_seconds() for program in programs]
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        rows = []
        for program, used in zip(programs, before, strict=True):
            assert program.alive(), f"{program.name} has ended"
            share = (program.cpu_seconds() - used) / took
            rows.append(
                {
                    "program": program.name,
                    "doing": doing,
                    "ms of processor a minute": round(share * 60e3, 1),
                    "MiB": round(program.memory_mib(), 1),
                }
            )
    return rows


def changes(rounds: int) -> list[Row]:
    """How long after the operator's answer handlers are told."""
    with contextlib.ExitStack() as running:
        service = running.enter_context(Service(WITHOUT_RATE))
        service.ask("PUT", "/v1/fleet", standalone(1))
        endpoint = f"http://127.0.0.1:{service.port}/vm/m0"
        programs = [running.enter_context(Program(name, endpoint)) for name in PROGRAMS]
        heard: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        time.sleep(SETTLED_SECONDS)
        number = 0
        for turn in range(2 * rounds):
            if turn % 2 == 0:
                plan = {"event_type": "Reboot", "machines": ["m0"]}
                answer = service.ask("POST", "/v1/maintenances", plan)
                number = answer["maintenance"]["number"]
            else:
                service.ask("POST", "/v1/cancellations", {"references": [str(number)]})
            answered = time.monotonic()
            for program in programs:
                at = program.told()
                assert at is not None, f"{program.name} was not told"
                heard[program.name].append((at - answered) * 1e3)
            time.sleep(APART_SECONDS)
    return [
        {
            "program": name,
            "ms to the handler's first line": spread(figures, 1),
            "p90": round(percentile(figures, 0.9), 1),
        }
        for name, figures in heard.items()
    ]


def missing() -> list[str]:
    return [] if importlib.util.find_spec("requests") else ["requests"]


def run(*, quick: bool) -> dict[str, Any]:
    imported = imports(3 if quick else 15)
    show("import; aim: at most half of requests'", imported)
    seconds = 2.0 if quick else 60.0
    with still() as endpoint:
        idle = idling(seconds, endpoint, "asks each second", list(PROGRAMS))
    with Service(WITHOUT_RATE) as service:
        service.ask("PUT", "/v1/fleet", standalone(1))
        endpoint = f"http://127.0.0.1:{service.port}/vm/m0"
        waiting = [name for name in PROGRAMS if name.startswith("forewarn")]
        idle += idling(seconds, endpoint, "waits", waiting)
    show("watching, nothing happens; aim: 20 MiB at most, 25 with asyncio", idle)
    told = changes(1 if quick else 15)
    aim = "aim: 5 ms for those that wait"
    show(f"from the operator's answer to the handler's first line; {aim}", told)
    return {"imports": imported, "idle": idle, "changes": told}
