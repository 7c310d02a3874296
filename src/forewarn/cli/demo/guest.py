"""A guest of the demo: a small program in a machine, as its owner might write it.

It imports nothing of Forewarn: it asks the metadata endpoint, as any program in a virtual machine
can. It prints what it does, a line each. It ends when its stdin does, so that no guest outlives the
demo.

The role says how it answers an event whose first resource it is. By custom the first resource
leads, and the other machines of the event leave the approval to it:

    approves    at once
    drains      when its connections are drained
    watches     never: it only reads, and the notice runs out
"""

import argparse
import http.client
import json
import select
import sys
import urllib.parse
from typing import Any

POLL_SECONDS = 0.3
"""Between two requests. The clock of the demo runs 90 times as fast: this is a guest's 27 s."""

ANSWER_SECONDS = 5.0
"""After so long without an answer the guest asks again."""

NAME_PATH = "/instance/compute/name?api-version=2017-08-01&format=text"
PREVIEW = "2017-03-01"

DURING = {
    "Freeze": "paused",
    "Reboot": "restarting",
    "Redeploy": "moving",
    "Preempt": "being deleted",
}
"""What happens to a machine while an event of this type is Started."""


class GuestProgram:
    """The program in one machine.

    Args:
        given: The command line.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        url = urllib.parse.urlsplit(given.url)
        self._connection = http.client.HTTPConnection(
            url.hostname or "", url.port, timeout=ANSWER_SECONDS
        )
        self._base = f"{url.path}/metadata"
        self._version = given.api_version
        self._role = given.role
        self._drain_polls = round(given.drain / POLL_SECONDS)
        self.deleted = False
        """Whether the machine goes away: then nobody answers it any more."""
        self._name = ""
        self._known: dict[str, dict[str, Any]] = {}
        self._approve_in: dict[str, int] = {}
        """Polls until an event is approved, by its id."""

    def step(self) -> None:
        """Read the events, and do what follows."""
        self._name = self._name or self._ask("GET", NAME_PATH).decode()
        path = f"/scheduledevents?api-version={self._version}"
        events = json.loads(self._ask("GET", path))["Events"]
        now = {event["EventId"]: event for event in events if self._name in event["Resources"]}
        for event_id, event in now.items():
            before = self._known.get(event_id)
            if before is None:
                self._appeared(event)
            elif before["EventStatus"] != event["EventStatus"]:
                say(DURING[event["EventType"]])
                self.deleted = event["EventType"] == "Preempt"
        for event_id in self._known.keys() - now.keys():
            self._approve_in.pop(event_id, None)
            self._gone(self._known[event_id])
        self._known = now
        for event_id in [e for e in self._approve_in if now[e]["EventStatus"] == "Scheduled"]:
            self._approve_in[event_id] -= 1
            if self._approve_in[event_id] < 0:
                del self._approve_in[event_id]
                self._ask("POST", path, json.dumps({"StartRequests": [{"EventId": event_id}]}))
                say("approved it")

    def _appeared(self, event: dict[str, Any]) -> None:
        leader = event["Resources"][0]
        if event["EventStatus"] == "Started":
            say(DURING[event["EventType"]])
        elif self._role == "watches":
            say("does nothing")
        elif leader != self._name:
            say(f"leaves it to {leader}")
        elif self._role == "approves":
            self._approve_in[event["EventId"]] = 0
        else:
            self._approve_in[event["EventId"]] = self._drain_polls
            say("saves its work ..." if event["EventType"] == "Preempt" else "drains ...")

    def _gone(self, event: dict[str, Any]) -> None:
        if event["EventStatus"] == "Scheduled":
            say("carries on")
        else:
            say("was deleted" if event["EventType"] == "Preempt" else "back in service")

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        # The published clients of the preview post without the header; so does this one.
        headers = {} if body and self._version == PREVIEW else {"Metadata": "true"}
        try:
            self._connection.request(method, self._base + path, body, headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        if response.status != http.HTTPStatus.OK:
            said = answer.decode(errors="replace")
            raise ConnectionError(f"{method} was answered with {response.status}: {said}")
        return answer


def say(what: str) -> None:
    """Tell the demo, which shows it."""
    print(what, flush=True)  # noqa: T201 - the demo reads stdout


def main() -> None:
    """Ask and act until stdin ends."""
    parser = argparse.ArgumentParser(description="A guest of Forewarn's demo.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--role", required=True, choices=["approves", "drains", "watches"])
    parser.add_argument("--api-version", required=True)
    parser.add_argument("--drain", type=float, default=0.0)
    guest = GuestProgram(parser.parse_args())
    trouble = ""
    while True:
        try:
            guest.step()
            trouble = ""
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if str(error) != trouble and not guest.deleted:
                trouble = str(error)
                say(f"cannot read its events: {trouble}")
        if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
            return


if __name__ == "__main__":
    main()
