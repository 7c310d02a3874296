"""A guest of the demo: a small program in a machine, as its owner might write it.

It imports nothing of Forewarn, and asks the metadata endpoint as any program in a virtual machine
can. It prints a line for each thing that it does, and ends with its stdin, so that no guest
outlives the demo. By custom the first resource of an event leads, and the other machines leave the
approval to it. The arguments are the endpoint, the version of the protocol, and the seconds that
the program needs before it approves: `inf` never approves, and lets the notice run out.
"""

import http.client
import json
import math
import select
import sys
import urllib.request
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
"""The state of a machine while an event of this type is Started."""

opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GuestProgram:
    """The program in one machine."""

    def __init__(self, endpoint: str, version: str, seconds: str) -> None:
        self._endpoint = endpoint
        self._version = version
        self._seconds = float(seconds)
        self._name = ""
        self._events: dict[str, dict[str, Any]] = {}
        """The events of this machine by their ids."""
        self._polls_left: dict[str, float] = {}
        """Until an event is approved, by its id."""
        self.deleted = False
        """True once the machine goes away: nobody answers its program any more."""

    def step(self) -> None:
        """Read the events, and do what follows."""
        path = f"/scheduledevents?api-version={self._version}"
        self._name = self._name or self._ask(NAME_PATH).decode()
        listed = json.loads(self._ask(path))["Events"]
        before, mine = self._events, [each for each in listed if self._name in each["Resources"]]
        self._events = {event["EventId"]: event for event in mine}
        for event_id, event in self._events.items():
            was = before.pop(event_id, {}).get("EventStatus")
            if event["EventStatus"] == "Started" != was:
                say(DURING[event["EventType"]])
                self.deleted = event["EventType"] == "Preempt"
            elif event["EventStatus"] == "Scheduled":
                if was is None:
                    self._polls_left[event_id] = self._prepare(event)
                if self._polls_left[event_id] == 0:
                    self._ask(path, json.dumps({"StartRequests": [{"EventId": event_id}]}))
                    say("approved it")
                self._polls_left[event_id] -= 1
        for event in before.values():
            over = "was deleted" if self.deleted else "back in service"
            say("carries on" if event["EventStatus"] == "Scheduled" else over)

    def _prepare(self, event: dict[str, Any]) -> float:
        """Return the number of polls after which it approves."""
        leader = event["Resources"][0]
        if self._seconds == math.inf:
            say("does not approve: its event waits for NotBefore")
        elif leader != self._name:
            say(f"leaves the approval to {leader}")
        else:
            if self._seconds > POLL_SECONDS:
                say("saves its work ..." if event["EventType"] == "Preempt" else "drains ...")
            return self._seconds // POLL_SECONDS
        return math.inf

    def _ask(self, path: str, body: str | None = None) -> bytes:
        # The published clients of the preview post without the header; so does this one.
        headers = {} if body and self._version == PREVIEW else {"Metadata": "true"}
        data = None if body is None else body.encode()
        url = self._endpoint + path
        request = urllib.request.Request(url, data, headers)  # noqa: S310 - our URL
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            content: bytes = answer.read()
        return content


def say(what: str) -> None:
    """Tell the demo, which shows it."""
    print(what, flush=True)  # noqa: T201 - the demo reads stdout


def main() -> None:
    """Ask and act until stdin ends."""
    guest = GuestProgram(*sys.argv[1:])
    trouble = ""
    while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        try:
            guest.step()
            if trouble:
                say("can read its events again")
            trouble = ""
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if guest.deleted:
                return
            why = str(getattr(error, "reason", error))
            if why != trouble:
                trouble = why
                say(f"cannot read its events: {trouble}")


if __name__ == "__main__":
    main()
