"""A round's processes, and what is seen of them: machines, agents, balancer, client."""

import contextlib
import csv
import http.client
import json
import os
import signal
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

from forewarn import clock
from forewarn.cli import output
from forewarn.cli.demo import processes
from forewarn.cli.demo.processes import Process
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import Service
from forewarn.cli.pool import place
from forewarn.cli.pool.place import Place
from forewarn.cli.pool.results import Change, Failure, Machine, State, follow
from forewarn.server.operator import vitals

BALANCER: Final = "haproxy"
"""The program, as PATH finds it."""

ANSWER_SECONDS: Final = 2.0
"""For an agent or the balancer to say how things are: they do at once."""

MAX_ANSWER: Final = 1024 * 1024
"""The most bytes of such an answer that are read."""

RUNS_SECONDS: Final = 5.0
"""For the connector's runs to end when there is no host any more."""

UP: Final = "UP"
"""What the balancer's status of a server that gets requests begins with."""


class Seen:
    """What is seen of one machine.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self.machine = Machine(name, place.domain(name), boots=[], changes=[])
        self.on = False
        self.pids: list[int] = []
        """Its processes, of which its host has told."""
        self.balancer = ""
        """What the balancer says of it."""
        self.agent = ""
        """What its agent says; `""` while it does not answer, and where there is none."""
        self.ready = False
        self.state: State | None = None


class World:
    """All processes of a round.

    Args:
        where: Their files.
    """

    def __init__(self, where: Place) -> None:
        self.place = where
        self.operator = Service(str(where.operator))
        self.seen = {name: Seen(name) for name in place.MACHINES}
        self.answered: Counter[str] = Counter()
        self.failures: list[Failure] = []
        self.slowest: dict[str, float] = {}
        self.rate = 0.0
        """Requests in a second, as the client told last."""
        self.began: float | None = None
        """The monotonic clock's time at the first request; None before it."""
        self.heard_at = 0.0
        """When the client told something last."""
        self.asked_until = 0.0
        """When the client was told to begin nothing more."""
        self._running: dict[str, Process] = {}

    def start_service(self) -> None:
        """Start the service."""
        settings = self.place.folder / "forewarn.toml"
        self._running["forewarn"] = processes.service(settings, self.place.log("forewarn"))

    def start_pool(self) -> None:
        """Start the machines, and the balancer before them."""
        host = [sys.executable, "-I", str(place.ROOM / "host.py")]
        host.append(str(self.place.folder / "host.json"))
        self._start("host", host, reads=True)
        settings = self.place.folder / "haproxy.cfg"
        self._start("haproxy", [BALANCER, "-db", "-f", str(settings)], reads=False)

    def start_traffic(self) -> None:
        """Let the client begin."""
        where = ("--address", place.BALANCER, "--port", str(self.place.balancer_port))
        client = [sys.executable, "-I", str(place.ROOM / "traffic.py"), *where]
        self._start("client", client, reads=True)
        self.began = self.heard_at = clock.monotonic()

    def end_traffic(self) -> None:
        """Let the client begin nothing more; `traffic_over` tells when the last has ended."""
        self.asked_until = clock.monotonic()
        self._running["client"].ask_to_stop()

    @property
    def traffic_over(self) -> bool:
        """Whether the client's last request has ended, and all is counted."""
        if self._running["client"].status is None:
            return False
        self._hear_client()
        return True

    def close(self) -> None:
        """End every process that was started; what others need, last."""
        order = ("client", "haproxy", "host", "forewarn")
        running = [self._running.pop(name) for name in order if name in self._running]
        for process in running:
            process.ask_to_stop()
        for process in running:
            process.stop()
        self._end_orphans()
        self._await_runners()

    def look(self) -> None:
        """Look at everything once.

        Raises:
            Failed: A process has ended that should not.
        """
        self.judge()
        self._hear_host()
        self._ask_balancer()
        for seen in self.seen.values():
            if self.place.agents:
                self._ask_agent(seen)
            else:
                seen.ready = True
            self._follow(seen)
        if "client" in self._running:
            self._hear_client()

    def judge(self) -> None:
        """Look whether every process runs; the client alone may end by itself.

        Raises:
            Failed: One has ended that should not.
        """
        for name, process in self._running.items():
            if process.status is not None and (name != "client" or process.status != 0):
                raise self._ended(name, process)

    @property
    def ready(self) -> bool:
        """Whether the service is."""
        if not self.place.operator.exists():
            return False
        try:
            return self.operator.get("/readyz").read(vitals.Readiness).ready
        except Failed:
            return False

    @property
    def whole(self) -> bool:
        """Whether every machine serves."""
        return all(seen.state is State.SERVING for seen in self.seen.values())

    def since(self, moment: float) -> float:
        """Return when a moment of the monotonic clock was, in seconds since the first request."""
        return moment - (self.began or moment)

    def _end_orphans(self) -> None:
        """End agents whose host somebody has killed: they know nothing of a host."""
        folder = str(self.place.folder).encode()
        for pid in [pid for seen in self.seen.values() for pid in seen.pids]:
            with contextlib.suppress(OSError):  # nearly always it has ended with its host
                if folder in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def _await_runners(self) -> None:
        """Wait for the connector's runs: without the host they end at once, but by themselves."""
        alive = list(self.place.folder.glob("commands/*/*/alive"))
        if not alive:
            return
        from forewarn.connectors import runs

        nap, deadline = threading.Event(), clock.monotonic() + RUNS_SECONDS
        while any(map(runs.lives, alive)) and clock.monotonic() < deadline:
            nap.wait(0.02)

    def _start(self, name: str, command: list[str], *, reads: bool) -> None:
        self._running[name] = Process(command, self.place.log(name), reads=reads)

    def _ended(self, name: str, process: Process) -> Failed:
        log = processes.tail(self.place.log(name)) or "it said nothing"
        last = log.splitlines()[-1]
        if name == "forewarn" and process.status == ExitStatus.MISSING_EXTRA:
            return Failed(ExitStatus.MISSING_EXTRA, last.removeprefix("forewarn: "))
        output.note(log)
        message = f"{name} ended with status {process.status}: {last}"
        return Failed(ExitStatus.DEMO_FAILED, f"the demo went wrong: {message}")

    def _hear_host(self) -> None:
        for line in self._running["host"].lines():
            told = json.loads(line)
            seen = self.seen[told["machine"]]
            seen.on = told["power"] == "on"
            seen.pids = told["pids"]
            if seen.on:
                seen.machine.boots.append(told["pids"][0])
            self._follow(seen, told["at"])  # its own time is more exact than that of the next look

    def _hear_client(self) -> None:
        for line in self._running["client"].lines():
            told = json.loads(line)
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
            return  # it is being started; that it has ended is seen elsewhere
        rows = csv.DictReader(text.decode().removeprefix("# ").splitlines())
        for row in rows:
            if row["svname"] in self.seen:
                self.seen[row["svname"]].balancer = row["status"]

    def _ask_agent(self, seen: Seen) -> None:
        told = self._told_by(seen.machine.name) if seen.on else None
        seen.ready = bool(told and told["machine"] and told["ready"])
        mine = [event for event in told["events"] if event["concerns_me"]] if told else []
        if told is None:
            seen.agent = ""
        elif mine:
            seen.agent = str(mine[0]["phase"])
        else:
            seen.agent = "ready" if seen.ready else "not ready"

    def _told_by(self, name: str) -> dict[str, Any] | None:
        """Return an agent's status; None if it does not answer."""
        connection = http.client.HTTPConnection(
            place.address(name), self.place.agent_port, timeout=ANSWER_SECONDS
        )
        try:
            connection.request("GET", "/status")
            told: dict[str, Any] = json.loads(connection.getresponse().read(MAX_ANSWER))
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return told

    def _follow(self, seen: Seen, at: float | None = None) -> None:
        """Note a machine's state if it has changed."""
        up = seen.balancer.startswith(UP)
        state = follow(seen.state, on=seen.on, up=up, ready=seen.ready)
        if state is not seen.state:
            seen.state = state
            moment = clock.monotonic() if at is None else at
            seen.machine.changes.append(Change(round(moment, 3), state))
