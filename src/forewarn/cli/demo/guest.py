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
"""What happens to a machine while an event of this type is Started."""

Events = dict[str, dict[str, Any]]
"""The events of this machine by their ids."""

opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GuestProgram:
    """The program in one machine."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._base = f"{given.url}/metadata"
        self._preview = given.api_version == PREVIEW
        self._path = f"/scheduledevents?api-version={given.api_version}"
        self._role = given.role
        self._drain_polls = round(given.drain / POLL_SECONDS)
        self._name = ""
        self._known: Events = {}
        self._approve_in: dict[str, int] = {}
        """Polls until an event is approved, by its id."""
        self.deleted = False
        """Whether the machine goes away: then nobody answers its program any more."""

    def step(self) -> None:
        """Read the events, and do what follows."""
        self._name = self._name or self._ask(NAME_PATH).decode()
        events = json.loads(self._ask(self._path))["Events"]
        now: Events = {e["EventId"]: e for e in events if self._name in e["Resources"]}
        before, self._known = self._known, now
        for event_id in now.keys() - before.keys():
            if now[event_id]["EventStatus"] == "Scheduled":
                self._prepare(now[event_id])
        for event_id, event in now.items():
            was = before.get(event_id, {}).get("EventStatus")
            if event["EventStatus"] == "Started" != was:
                say(DURING[event["EventType"]])
                self.deleted = event["EventType"] == "Preempt"
        for event_id in before.keys() - now.keys():
            canceled = before[event_id]["EventStatus"] == "Scheduled"
            say("carries on" if canceled else "was deleted" if self.deleted else "back in service")
        for event_id in list(self._approve_in):
            self._approve_in[event_id] -= 1
            if now.get(event_id, {}).get("EventStatus") != "Scheduled":
                del self._approve_in[event_id]
            elif self._approve_in[event_id] < 0:
                del self._approve_in[event_id]
                self._ask(self._path, json.dumps({"StartRequests": [{"EventId": event_id}]}))
                say("approved it")

    def _prepare(self, event: dict[str, Any]) -> None:
        leader = event["Resources"][0]
        if self._role == "watches":
            say("does nothing")
        elif leader != self._name:
            say(f"leaves it to {leader}")
        elif self._role == "approves":
            self._approve_in[event["EventId"]] = 0
        else:
            self._approve_in[event["EventId"]] = self._drain_polls
            say("saves its work ..." if event["EventType"] == "Preempt" else "drains ...")

    def _ask(self, path: str, body: str | None = None) -> bytes:
        # The published clients of the preview post without the header; so does this one.
        headers = {} if body and self._preview else {"Metadata": "true"}
        data = None if body is None else body.encode()
        request = urllib.request.Request(self._base + path, data, headers)  # noqa: S310 - our URL
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            content: bytes = answer.read()
        return content


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
    while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        try:
            guest.step()
            trouble = ""
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if guest.deleted:
                return
            if str(error) != trouble:
                trouble = str(error)
                say(f"cannot read its events: {trouble}")


if __name__ == "__main__":
    main()
