"""The processes of a round, and what they show: service, machines, agents, balancer, clients."""

import contextlib
import csv
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pool import place
from pool.place import Place
from pool.results import Change, DemoFailed, Failure, Machine, State, follow

ANSWER_SECONDS: Final = 2.0
"""For an agent or the balancer to answer; they answer at once."""

OPERATOR_SECONDS: Final = 20.0
"""For the service, or a command that asks it, to answer."""

STOP_SECONDS: Final = 10.0
"""For a process to end before it is killed; the service promises the same."""

ORPHAN_SECONDS: Final = 5.0
"""For the runners of the connector to end once the host has gone."""

MAX_ANSWER: Final = 4 * 1024 * 1024
"""The most bytes of an answer that are read."""


class Process:
    """A program of the demo. It is no child of the terminal: Ctrl-C reaches the demo alone.

    Its output goes to a log; if it `speaks`, it prints JSON objects, which `told` returns.
    """

    def __init__(self, command: Sequence[str], log: Path, *, speaks: bool = False) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # whose end ends the host and the clients
                stdout=subprocess.PIPE if speaks else errors,
                stderr=errors,
                start_new_session=True,
            )
        self._line = b""
        self._asked_to_stop = False
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def status(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._process.poll()

    def told(self) -> list[dict[str, Any]]:
        """Return the objects that it has printed since the last call, without waiting."""
        assert self._process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._process.stdout.fileno(), 65536):
                self._line += part
        *whole, self._line = self._line.split(b"\n")
        return [json.loads(line) for line in whole]

    def ask_to_stop(self) -> None:
        """Send SIGTERM once: a second one would end the service in haste."""
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.terminate()

    def stop(self) -> None:
        """Ask it to end, then kill it; return when it is gone."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Seen:
    """What is known of one machine."""

    def __init__(self, name: str) -> None:
        self.machine = Machine(name, place.domain(name), boots=[], changes=[])
        self.on = False
        self.balancer = ""
        """Its status at the balancer, such as `UP`."""
        self.state: State | None = None


class World:
    """All processes of a round."""

    def __init__(self, where: Place) -> None:
        self.place = where
        self.seen = {name: Seen(name) for name in place.MACHINES}
        self.answered: Counter[str] = Counter()
        self.failures: list[Failure] = []
        self.slowest: dict[str, float] = {}
        self.rate = 0.0
        """Requests per second, as the clients told last."""
        self.began: float | None = None
        """The monotonic time of the first request; None before it."""
        self.heard_at = 0.0
        """When the clients told something last."""
        self.asked_until = 0.0
        """When the clients were told to send nothing more."""
        self._running: dict[str, Process] = {}

    def start_service(self) -> None:
        """Start the service."""
        settings = str(self.place.folder / "forewarn.toml")
        self._start("forewarn", [*place.FOREWARN, "serve", "--config", settings])

    def start_pool(self) -> None:
        """Start the machines, and the balancer before them."""
        settings = str(self.place.folder / "host.json")
        self._start("host", [*place.PYTHON, str(place.ROOM / "host.py"), settings], speaks=True)
        self._start("haproxy", ["haproxy", "-db", "-f", str(self.place.folder / "haproxy.cfg")])

    def start_traffic(self) -> None:
        """Start the clients."""
        where = ("--address", place.BALANCER, "--port", str(self.place.balancer_port))
        self._start("client", [*place.PYTHON, str(place.ROOM / "traffic.py"), *where], speaks=True)
        self.began = self.heard_at = time.monotonic()

    def end_traffic(self) -> None:
        """Let the clients send nothing more; see `traffic_over`."""
        self.asked_until = time.monotonic()
        self._running["client"].ask_to_stop()

    @property
    def traffic_over(self) -> bool:
        """Whether the last request has ended and is counted."""
        if self._running["client"].status is None:
            return False
        self._hear_clients()
        return True

    @property
    def whole(self) -> bool:
        """Whether every machine serves."""
        return all(seen.state is State.SERVING for seen in self.seen.values())

    def since(self, moment: float) -> float:
        """Return a monotonic time in seconds since the first request."""
        return moment - (self.began or moment)

    def operate(self, *arguments: str, given: str = "") -> dict[str, Any]:
        """Run a command of `forewarn`, as an operator does, and return its JSON."""
        command = [*place.FOREWARN, *arguments, "--json", "--operator", str(self.place.operator)]
        ended = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=OPERATOR_SECONDS,
            check=False,
        )
        if ended.returncode:
            raise DemoFailed(f"forewarn {' '.join(arguments)}: {ended.stderr.strip()}")
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    def ask(self, path: str) -> bytes:
        """Ask the operators' API, which costs less than a command five times per second."""
        connection = http.client.HTTPConnection("localhost")
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(OPERATOR_SECONDS)
            connection.sock.connect(str(self.place.operator))
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            self.judge()  # it may have ended, which says more
            raise DemoFailed(f"the service does not answer: {error}") from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise DemoFailed(f"the service answered {path} with {response.status}: {body!r}")
        return body

    def look(self) -> None:
        """Look at everything once."""
        self.judge()
        self._hear_host()
        self._ask_balancer()
        for seen in self.seen.values():
            self._follow(seen)
        if "client" in self._running:
            self._hear_clients()

    def judge(self) -> None:
        """Raise DemoFailed if a process has ended; only the clients may end by themselves."""
        for name, process in self._running.items():
            if process.status is not None and (name != "client" or process.status != 0):
                last = self.tail(name).splitlines()[-1:] or ["it printed nothing"]
                raise DemoFailed(f"{name} ended with status {process.status}: {last[0]}")

    def tail(self, name: str) -> str:
        """Return the last lines of a log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.place.log(name).read_text(errors="replace").splitlines()[-8:])
        return ""

    def close(self) -> None:
        """End every process; those that others need come last."""
        order = ("client", "haproxy", "host", "forewarn")
        running = [self._running.pop(name) for name in order if name in self._running]
        for process in running:
            process.ask_to_stop()
        for process in running:
            process.stop()
        # The runners of the connector end by themselves once the host is gone. Agents end with
        # their host, but not where somebody has killed it.
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Return our processes that have the folder of this round in their command line."""
        folder, python = str(self.place.folder).encode(), sys.executable.encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if line.startswith(python) and folder in line:
                    found.append(int(entry.name))
        return found

    def _start(self, name: str, command: list[str], *, speaks: bool = False) -> None:
        self._running[name] = Process(command, self.place.log(name), speaks=speaks)

    def _hear_host(self) -> None:
        for told in self._running["host"].told():
            seen = self.seen[told["machine"]]
            seen.on = told["power"] == "on"
            if seen.on:
                seen.machine.boots.append(told["pids"][0])
            self._follow(seen, told["at"])  # more exact than the time of the next look

    def _hear_clients(self) -> None:
        for told in self._running["client"].told():
            self.answered.update(told["answered"])
            for kind, seconds in told["slowest"].items():
                self.slowest[kind] = max(seconds, self.slowest.get(kind, 0.0))
            for failed in told["failed"]:
                at = round(self.since(failed["at"]), 3)
                self.failures.append(Failure(at, failed["kind"], failed["how"]))
            count = sum(told["answered"].values()) + len(told["failed"])
            self.rate = count / max(0.001, told["at"] - self.heard_at)
            self.heard_at = told["at"]

    def _ask_balancer(self) -> None:
        """Ask the balancer which machines it sends requests to."""
        text = b""
        try:
            with socket.socket(socket.AF_UNIX) as api:
                api.settimeout(ANSWER_SECONDS)
                api.connect(str(self.place.balancer))
                api.sendall(b"show stat\n")
                while part := api.recv(65536):
                    text += part
        except OSError:
            return  # it is starting; `judge` sees it if it has ended
        for row in csv.DictReader(text.decode().removeprefix("# ").splitlines()):
            if row["svname"] in self.seen:
                self.seen[row["svname"]].balancer = row["status"]

    def _ready(self, seen: Seen) -> bool:
        """Tell whether the agent of a machine is ready; True without agents."""
        if not self.place.agents:
            return True
        if not seen.on:
            return False
        connection = http.client.HTTPConnection(
            place.address(seen.machine.name), self.place.agent_port, timeout=ANSWER_SECONDS
        )
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _follow(self, seen: Seen, at: float | None = None) -> None:
        """Record the state of a machine if it has changed."""
        up = seen.balancer.startswith("UP")
        state = follow(seen.state, on=seen.on, up=up, ready=seen.on and self._ready(seen))
        if state is not seen.state:
            seen.state = state
            moment = time.monotonic() if at is None else at
            seen.machine.changes.append(Change(round(moment, 3), state))
