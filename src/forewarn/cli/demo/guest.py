"""A guest of the demo: one small program inside a machine, as its owner might have written it.

It imports nothing of Forewarn and is run by `python -I`: it only asks the metadata endpoint, as any
program in a virtual machine can. What it does it says on stdout, a line each. It ends when its
stdin does, so that no guest outlives the demo.

The role is how it answers an event whose first resource it is; the first leads by custom, and the
other machines of the event leave the word to it:

    approves    at once
    drains      when its connections are drained
    watches     never; it only reads, and the notice runs out
"""

import argparse
import http.client
import json
import select
import sys
import urllib.parse
from typing import Any

POLL_SECONDS = 0.3
"""Between two questions. Time runs 90 times as fast in the demo: this is a guest's 27 s."""

ANSWER_SECONDS = 5.0
"""How long an answer may take; then the guest asks anew."""

NAME_VERSION = "2017-08-01"
"""The instance service's oldest version that every Forewarn has."""

PREVIEW = "2017-03-01"


class Metadata:
    """The metadata endpoint as this machine reaches it.

    Args:
        url: Where it is, without `/metadata`.
        version: The api-version for scheduled events.
    """

    def __init__(self, url: str, version: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=ANSWER_SECONDS
        )
        self._path = f"{parts.path}/metadata"
        self._version = version

    def name(self) -> str:
        """Ask for this machine's name, letter for letter what stands in `Resources`."""
        path = f"/instance/compute/name?api-version={NAME_VERSION}&format=text"
        return self._ask("GET", path).decode()

    def events(self) -> list[dict[str, Any]]:
        """Ask for the document and return its events."""
        body = self._ask("GET", f"/scheduledevents?api-version={self._version}")
        events: list[dict[str, Any]] = json.loads(body)["Events"]
        return events

    def approve(self, event_id: str) -> None:
        """Say that this event may start."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        self._ask("POST", f"/scheduledevents?api-version={self._version}", body)

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        # The preview's published clients post without the header; so does the one that speaks it.
        preview_post = method == "POST" and self._version == PREVIEW
        headers = {} if preview_post else {"Metadata": "true"}
        try:
            self._connection.request(method, self._path + path, body, headers)
            response = self._connection.getresponse()
            answered = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        if response.status != 200:
            said = answered.decode(errors="replace")
            raise ConnectionError(f"{method} was answered with {response.status}: {said}")
        return answered


class Guest:
    """What the program in this machine does about events.

    Args:
        metadata: Where it asks.
        role: How it answers.
        drain_seconds: How long its connections take to drain.
    """

    def __init__(self, metadata: Metadata, role: str, drain_seconds: float) -> None:
        self._metadata = metadata
        self._role = role
        self._drain_polls = round(drain_seconds / POLL_SECONDS)
        self._name = ""
        self._known: dict[str, dict[str, Any]] = {}
        self._approve_in: dict[str, int] = {}

    def step(self) -> None:
        """Ask once and do what follows."""
        self._name = self._name or self._metadata.name()
        now = {e["EventId"]: e for e in self._metadata.events() if self._name in e["Resources"]}
        for event_id, event in now.items():
            before = self._known.get(event_id)
            if before is None:
                self._appeared(event)
            elif before["EventStatus"] != event["EventStatus"]:
                say(DURING[event["EventType"]])
        for event_id in self._known.keys() - now.keys():
            self._approve_in.pop(event_id, None)
            say(self._afterwards(self._known[event_id]))
        self._known = now
        for event_id in [e for e in self._approve_in if now[e]["EventStatus"] == "Scheduled"]:
            self._approve_in[event_id] -= 1
            if self._approve_in[event_id] < 0:
                del self._approve_in[event_id]
                self._metadata.approve(event_id)
                say("approved it")

    @property
    def being_deleted(self) -> bool:
        """Whether this machine is about to be gone: nobody answers it any more then."""
        return any(
            event["EventStatus"] == "Started" and event["EventType"] in DELETED
            for event in self._known.values()
        )

    def _afterwards(self, event: dict[str, Any]) -> str:
        if event["EventStatus"] == "Scheduled":
            return "carries on"
        return "was deleted" if event["EventType"] in DELETED else "back in service"

    def _appeared(self, event: dict[str, Any]) -> None:
        kind, leader = event["EventType"], event["Resources"][0]
        if event["EventStatus"] == "Started":
            say(DURING[kind])
        elif self._role == "watches":
            say("does nothing")
        elif leader != self._name:
            say(f"leaves it to {leader}")
        elif self._role == "approves":
            self._approve_in[event["EventId"]] = 0
        else:
            self._approve_in[event["EventId"]] = self._drain_polls
            say("saves its work ..." if kind in DELETED else "drains ...")


DURING = {
    "Freeze": "paused",
    "Reboot": "restarting",
    "Redeploy": "moving",
    "Preempt": "being deleted",
    "Terminate": "being deleted",
}
"""What a machine is while an event of this type is Started."""

DELETED = {"Preempt", "Terminate"}
"""What a machine does not come back from."""


def say(what: str) -> None:
    """Tell the demo, which shows it."""
    print(what, flush=True)  # noqa: T201 - stdout is how a guest talks to the demo


def main() -> None:
    """Ask and act until stdin ends."""
    parser = argparse.ArgumentParser(description="A guest of Forewarn's demo.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--role", required=True, choices=["approves", "drains", "watches"])
    parser.add_argument("--api-version", required=True)
    parser.add_argument("--drain", type=float, default=0.0)
    given = parser.parse_args()
    guest = Guest(Metadata(given.url, given.api_version), given.role, given.drain)
    trouble = ""
    while True:
        try:
            guest.step()
            trouble = ""
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if str(error) != trouble and not guest.being_deleted:
                trouble = str(error)
                say(f"cannot read its events: {trouble}")
        if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
            return  # the demo's end of stdin is closed: it is over


if __name__ == "__main__":
    main()
