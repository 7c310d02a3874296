"""What the agent costs a machine, and how soon it acts.

Four figures: from its start to its first look, its memory, the processor time that it uses while it
asks once a second or waits, and from a change at the service to an approval that is in the store.
The start counts from the program `forewarn agent run` as well as from `python -m forewarn.agent`,
which that becomes; beside them stands the usual loop on requests.
"""

import contextlib
import importlib.util
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import machine
from library import CONTESTANTS, PROGRAMS, SETTLED_SECONDS, still
from servers import WITHOUT_RATE
from service import Service, standalone
from tables import Row, percentile, show, spread

RULES: Final = """
[status]
listen = "127.0.0.1:{port}"

[client]
endpoint = "{endpoint}"

[state]
folder = "state"

[[rule]]
name    = "prepare by a program"
match   = {{ types = ["Reboot"] }}
prepare = [ {{ command = {{ run = ["true"], undo = ["true"] }} }} ]
approve = "when-prepared"
"""

STARTS: Final = {
    "forewarn agent run": ("-m", "forewarn", "agent", "run"),
    "python -m forewarn.agent": ("-m", "forewarn.agent"),
    "requests, each second": (str(CONTESTANTS / PROGRAMS["requests, each second"]),),
}
LOOK_SECONDS: Final = 30.0
"""The longest that a first look is waited for."""

BETWEEN_SECONDS: Final = 0.01
"""How often a change is looked for that nobody tells."""


def settings(folder: Path, endpoint: str) -> Path:
    """Write an agent's settings."""
    written = folder / "agent.toml"
    text = RULES.format(port=machine.free_port(), endpoint=endpoint)
    written.write_text(text, encoding="utf-8")
    return written


class Agent:
    """One agent that runs, on a folder of its own."""

    def __init__(self, endpoint: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forewarn-bench-")
        folder = Path(self._folder.name)
        options = ["agent", "run", "--config", str(settings(folder, endpoint))]
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forewarn", *options],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(self._process.pid)

    def memory_mib(self) -> float:
        assert self._process.poll() is None, "the agent has ended"
        return machine.memory_kib(self._process.pid) / 1024


def first_look(name: str, program: Sequence[str]) -> tuple[float, float]:
    """How long after its start a program asks for the document; what processor it used till then.

    Returns:
        Both in seconds.
    """
    with contextlib.ExitStack() as running:
        listener = running.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(LOOK_SECONDS)
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/vm/m0"
        options = [endpoint]
        if "requests" not in name:
            folder = running.enter_context(tempfile.TemporaryDirectory(prefix="forewarn-bench-"))
            options = ["--config", str(settings(Path(folder), endpoint))]
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *program, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        running.callback(process.wait)
        running.callback(process.kill)
        asked = b""
        while b"/scheduledevents" not in asked:  # the machine's name may be asked for before
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(LOOK_SECONDS)
                asked = connection.recv(65536)
                took, used = time.monotonic() - began, machine.cpu_seconds(process.pid)
                if b"/scheduledevents" not in asked:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nm0")
    return took, used


def starts(rounds: int) -> list[Row]:
    """Starts in turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        for name, program in STARTS.items():
            found[name].append(first_look(name, program))
    return [
        {
            "program": name,
            "ms to the first look": spread([took * 1e3 for took, _ in figures]),
            "ms of processor": spread([used * 1e3 for _, used in figures]),
        }
        for name, figures in found.items()
    ]


def idling(seconds: float, endpoint: str, doing: str) -> Row:
    """What an agent uses that is told nothing."""
    with Agent(endpoint) as agent:
        time.sleep(SETTLED_SECONDS * (2 if seconds > 10 else 1))
        used, began = agent.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        share = (agent.cpu_seconds() - used) / (time.monotonic() - began)
        return {
            "agent": doing,
            "% of a core": round(share * 100, 3),
            "MiB": round(agent.memory_mib(), 1),
        }


def approvals(service: Service, rounds: int) -> list[float]:
    """How long after the operator's answer an agent's approval is in the store, in seconds."""
    found = []
    with Agent(f"http://127.0.0.1:{service.port}/vm/m0"):
        time.sleep(SETTLED_SECONDS)
        for _ in range(rounds):
            plan = {"event_type": "Reboot", "machines": ["m0"]}
            number = service.ask("POST", "/v1/maintenances", plan)["maintenance"]["number"]
            answered = time.monotonic()
            while _status(service, number) == "Scheduled":
                assert time.monotonic() - answered < LOOK_SECONDS, "nobody approved"
                time.sleep(BETWEEN_SECONDS)
            found.append(time.monotonic() - answered)
            while _status(service, number) in {"Started", "Returning"}:
                time.sleep(BETWEEN_SECONDS)
    return found


def _status(service: Service, number: int) -> str:
    (operation,) = service.ask("GET", f"/v1/history?maintenance={number}")["operations"]
    return str(operation["status"])


def missing() -> list[str]:
    return [] if importlib.util.find_spec("requests") else ["requests"]


def run(*, quick: bool) -> dict[str, Any]:
    started = starts(1 if quick else 10)
    show("from a start to the first look; aim: 600 ms", started)
    seconds = 2.0 if quick else 60.0
    idle = []
    with still() as endpoint:
        idle.append(idling(seconds, endpoint, "asks each second"))
    swift = f"{WITHOUT_RATE}[connector.simulated]\nreboot_seconds = 0.05\n"
    with Service(swift) as service:
        service.ask("PUT", "/v1/fleet", standalone(1))
        idle.append(idling(seconds, f"http://127.0.0.1:{service.port}/vm/m0", "waits"))
        show("nothing happens; aims: 0.1 % of a core, 32 MiB", idle)
        approved = [took * 1e3 for took in approvals(service, 2 if quick else 20)]
    row = {
        "ms to the approval in the store": spread(approved),
        "p90": round(percentile(approved, 0.9)),
    }
    show("an event, one program run to prepare, the approval", [row])
    return {"starts": started, "idle": idle, "approvals": [row]}
