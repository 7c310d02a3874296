"""Machines that read their events from the host that they are on, and note all that they read.

Each polls ten times a second by a new connection, on a thread in its own network namespace; what
they wrote down is what the promises are judged by.
"""

import json
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, Final, NamedTuple

import web
from relays import network
from trace_judge import Trace

EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
POLL_SECONDS: Final = 0.1
LOST: Final = 0
"""In the place of a status: there was no answer."""


class Poll(NamedTuple):
    """What a machine was answered."""

    began: float
    at: float
    """Both by `time.time()`."""
    status: int
    """LOST where there was no answer."""
    document: dict[str, Any]
    age: int
    """Of the answer, in seconds, as its header says; 0 without one."""
    error: str


class Machine:
    """One machine that polls; its fleet name is its name."""

    def __init__(self, guest: network.Guest) -> None:
        self.name = guest.name
        self.address = guest.address
        self.polls: list[Poll] = []
        self.approvals: dict[str, list[float]] = {}
        """When it sent approvals of each event."""
        self._guest = guest
        self._ends = threading.Event()
        self.polling = threading.Lock()
        """Held while a poll is under way."""
        self._thread = network.on_thread_in(guest, self._run)

    def last(self) -> Poll | None:
        """Return the last answer with a document."""
        return next((poll for poll in reversed(self.polls) if poll.status == 200), None)

    def events(self) -> list[dict[str, Any]]:
        """Return the events that it read last."""
        poll = self.last()
        return list(poll.document["Events"]) if poll else []

    def failed(self, since: float = 0.0) -> list[Poll]:
        """Return the polls that did not bring a document."""
        return [poll for poll in self.polls if poll.began >= since and poll.status != 200]

    def approve(self, event_id: str) -> int:
        """Approve an event, and return the status; LOST where there was no answer."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        self.approvals.setdefault(event_id, []).append(time.time())
        answers: list[int] = []

        def post() -> None:
            answers.append(_ask("POST", body)[0])

        network.on_thread_in(self._guest, post).join()
        return answers[0]

    def close(self) -> None:
        """Poll no more."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(POLL_SECONDS):
            with self.polling:
                began = time.time()
                status, body, age, error = _ask("GET", None)
                document = json.loads(body) if status == 200 else {}
                self.polls.append(Poll(began, time.time(), status, document, age, error))


def _ask(method: str, body: str | None) -> tuple[int, str, int, str]:
    """Return the status, the body, its age, and what is wrong."""
    try:
        told = web.ask(80, EVENTS, method, body, to=network.ENDPOINT)
    except (OSError, HTTPException) as error:
        return LOST, "", 0, repr(error)
    return *told[:2], int(told.headers.get("age", "0")), "" if told.status == 200 else told.body


def judge(machines: Iterable[Machine], scopes: dict[str, str]) -> list[str]:
    """Return what no guest may see, a sentence each: see `trace_judge.Trace`.

    Args:
        machines: All of them.
        scopes: The scope of each by its name.
    """
    trace = Trace()
    machines = tuple(machines)
    approved: dict[str, float] = {}
    for machine in machines:
        for event_id, times in machine.approvals.items():
            approved[event_id] = min([*times, approved.get(event_id, times[0])])
    for machine in machines:
        not_before: dict[str, datetime] = {}
        for poll in machine.polls:
            if poll.status != 200:
                continue
            events = poll.document["Events"]
            incarnation = poll.document["DocumentIncarnation"]
            trace.read(machine.name, scopes[machine.name], incarnation, str(events))
            for event in events:
                name = event["EventId"]
                if event["EventStatus"] == "Scheduled":
                    not_before[name] = parsedate_to_datetime(event["NotBefore"])
                elif name in not_before:
                    at = datetime.fromtimestamp(poll.at, UTC)
                    sent = approved.get(name, poll.at) < poll.at
                    told = not_before.pop(name)
                    trace.started(f"{name} at {machine.name}", at, told, approved=sent)
    return trace.complaints
