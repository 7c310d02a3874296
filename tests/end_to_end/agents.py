"""Agents as processes of their own, and an endpoint whose document is the test's."""

import json
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import web
from client.scripted import Asked, Scripted, Talk
from patience import until
from ports import free_port
from programs import Program

COMMAND_LINE = ("-m", "forewarn", "agent", "run")
"""What people run; it becomes the agent."""

ACTION = """#!/bin/sh
# Leaves a line in the log for each run; with a file `hold` beside the log it waits for its end.
echo "$1 begins" >>{log}
while [ -e {hold} ]; do sleep 0.02; done
echo "$1 ends" >>{log}
"""

TWO = """
[[rule]]
name = "two"
match = { types = ["Reboot"] }
prepare = [
  { command = { run = ["ACTION", "a"], undo = ["ACTION", "un-a"] } },
  { command = { run = ["ACTION", "b"], undo = ["ACTION", "un-b"], repeatable = true } },
]
approve = "when-prepared"
"""
"""Two actions, the second of which may be repeated."""


class Endpoint(Scripted):
    """Serves a document of the test's; keeps what is approved.

    The emulator has no such documents: here ids are chosen, a machine has two events at once, an
    event is past its notice, and one comes back after its end.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(self._converse, port)
        self.document: dict[str, Any] = {"DocumentIncarnation": 1, "Events": []}
        self.approved: list[str] = []
        self.asked = 0
        """How often the document was asked for."""
        self.status = self.approval_status = 200
        """What questions and approvals are answered with; another one says nothing else."""
        self.at_approval: Callable[[], object] = lambda: None
        """Called when an approval has come, before it is answered."""

    def show(self, *events: dict[str, Any]) -> None:
        before = self.document["DocumentIncarnation"]
        self.document = {"DocumentIncarnation": before + 1, "Events": list(events)}

    def _converse(self, talk: Talk) -> None:
        while (asked := talk.request()) is not None:
            status, body = self._answer(asked)
            talk.answer(status, body if status == 200 else {"error": "not now"})

    def _answer(self, asked: Asked) -> tuple[int, Any]:
        if "/instance" in asked.target:
            return 200, asked.target.split("/vm/")[1].split("/")[0].encode()
        if asked.method == "GET":
            self.asked += 1
            return self.status, self.document
        self.approved += [each["EventId"] for each in json.loads(asked.body)["StartRequests"]]
        self.at_approval()
        return self.approval_status, b""


def event(event_id: str = "E1", **given: Any) -> dict[str, Any]:
    """Return an event as the wire has it: a Reboot of web-0 with fifteen minutes' notice."""
    at = time.gmtime(time.time() + given.pop("notice", 900))
    return {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": ["web-0"],
        "NotBefore": time.strftime("%a, %d %b %Y %H:%M:%S GMT", at),
        "Description": "",
        "EventSource": "User",
        "DurationInSeconds": -1,
    } | given


def started(event_id: str = "E1", **given: Any) -> dict[str, Any]:
    return event(event_id, EventStatus="Started", NotBefore="", **given)


class Agent(Program):
    """One machine's agent, with a log that its actions write."""

    def __init__(
        self,
        folder: Path,
        endpoint: str,
        rules: str,
        *,
        machine: str = "web-0",
        listen: tuple[str, int] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder / "agent.log")
        self.folder, self.machine = folder, machine
        self.address, self.port = listen or ("127.0.0.1", free_port())
        self._actions = folder / "actions.log"
        self.settings = folder / "agent.toml"
        self.action = folder / "action"
        paths = {"log": str(self._actions), "hold": str(folder / "hold")}
        self.action.write_text(
            ACTION.format_map({name: shlex.quote(path) for name, path in paths.items()})
        )
        self.action.chmod(0o755)
        place = folder / "agent.d"
        place.mkdir(exist_ok=True)
        (place / "here.toml").write_text(
            f'[client]\nendpoint = "{endpoint}/vm/{machine}"\n'
            f'[status]\nlisten = "{self.address}:{self.port}"\n'
            f'[state]\nfolder = "state"\n[log]\nformat = "json"\n'
        )
        self.write(rules)

    def write(self, rules: str) -> None:
        """Write the settings; `ACTION` in them is the program that leaves lines.

        Where the endpoint, the port and the journal are stands in a drop-in beside them.
        """
        self.settings.write_text(rules.replace("ACTION", str(self.action)))

    def start(self, *options: str, by: tuple[str, ...] = (), piped: bool = False) -> "Agent":
        """Start it.

        Args:
            options: Of `forewarn agent run`.
            by: What Python runs in the place of the agent.
            piped: Whether it writes its log to a pipe, which a thread copies, and not to the file.
        """
        arguments = [*(by or ("-m", "forewarn.agent")), *options, "--config", str(self.settings)]
        terms = {"stderr": subprocess.PIPE} if piped else {}
        self.begin(arguments, cwd="/", **terms)  # where systemd starts it
        if piped:
            assert self.process is not None
            threading.Thread(target=self._copy, args=(self.process.stderr,), daemon=True).start()
        return self

    def _copy(self, pipe: IO[bytes]) -> None:
        with pipe, self.log.open("ab", buffering=0) as said:
            for line in pipe:
                said.write(line)

    @property
    def done(self) -> list[str]:
        """What the actions have left."""
        return self._actions.read_text().splitlines() if self._actions.exists() else []

    def page(self, path: str) -> tuple[int, str]:
        """Ask the status port; 0 where nobody answers."""
        try:
            return web.ask(self.port, path, to=self.address)[:2]
        except OSError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        status, body = self.page("/status")
        return json.loads(body) if status == 200 else {}

    def phase(self, event_id: str = "E1") -> str:
        for each in self.status().get("events", []):
            if each["event_id"] == event_id:
                return str(each["phase"])
        return ""

    def shows(self, status: str) -> bool:
        """Tell whether its port shows an event with this status; it may show none yet."""
        events = self.status().get("events", [])
        return any(each["event_status"] == status for each in events)

    def expect(self, *lines: str) -> None:
        """Wait until the actions have left exactly these lines."""
        until(lambda: self.done == list(lines), lambda: (self.done, self.tail()))

    def until(self, holds: Callable[[], object]) -> None:
        until(holds, lambda: (self.done, self.status(), self.tail()))

    @property
    def looks(self) -> int:
        """How often it has seen the document, since its start; 0 where nobody answers."""
        looks = re.search(r"(?m)^forewarn_agent_looks_total (\d+)", self.page("/metrics")[1])
        return int(looks[1]) if looks else 0
