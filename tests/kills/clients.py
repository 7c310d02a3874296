"""Guests and operators as processes of their own: plain HTTP over sockets, nothing of forewarn.

Each appends and syncs what it sends before the first byte, and what it was answered. On its
standard input it takes orders, one JSON object a line: to kill the service in the midst of its
next request of a kind, to drop that order, to drain (ask for nothing new), to end. On its standard
output it says what became of them.
"""

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kills import operators
from kills.journal import Journal
from kills.wire import Broken, Wire

VERSION = "2020-07-01"

FORBIDDEN = 403

AGAIN_SECONDS = 0.1
"""How often a document that stays the same is noted again: that it still was so, is evidence."""


class Guest:
    """The machines of one scope: reads its document again and again, and approves some events."""

    def __init__(self, wire: Wire, cast: dict[str, Any], chance: random.Random) -> None:
        self._wire = wire
        self._scope = cast["scope"]
        self._machines = cast["machines"]
        self._mortal = set(cast["mortal"])
        self._chance = chance
        self._approves: dict[str, float] = {}
        self._answered: set[str] = set()
        self._last: tuple[int, bytes, int] | None = None
        self._noted = 0.0
        self._asks: list[tuple[float, float, str]] = []
        """The machines that asked since that was noted last: from when, until it was over."""

    def turn(self) -> None:
        machine = self._chance.choice(self._machines)
        began = time.time()
        try:
            status, body = self._wire.ask("read", self._head("GET", machine))
        finally:
            self._asks.append((began, time.time(), machine))
        if status == FORBIDDEN and machine in self._mortal:
            return  # it was preempted or deleted, or is not yet back
        if status != 200:
            self._odd(status, body, machine)
            return
        document = json.loads(body)
        seen = (document["DocumentIncarnation"], body, self._wire.at)
        if seen != self._last or began - self._noted >= AGAIN_SECONDS:
            self._last, self._noted = seen, began
            self._wire.journal.write(
                "read",
                scope=self._scope,
                document=document,
                began=began,
                asks=self._asks,
                replica=self._wire.at,
            )
            self._asks = []
        wanted = [event["EventId"] for event in document["Events"] if self._approve(event)]
        if wanted:
            self._post(machine, wanted)

    def _approve(self, event: dict[str, Any]) -> bool:
        """Whether it is approved now: at once, after a while, or never, as chance has it."""
        name = event["EventId"]
        if event["EventStatus"] != "Scheduled" or name in self._answered:
            return False
        if name not in self._approves:
            never = self._chance.random() < 0.25
            wait = float("inf") if never else self._chance.choice([0, 0, 0.05, 0.3])
            self._approves[name] = time.monotonic() + wait
        return self._wire.wanted == "approve" or time.monotonic() >= self._approves[name]

    def _post(self, machine: str, events: list[str]) -> None:
        body = {"StartRequests": [{"EventId": event} for event in events]}
        began = time.time()
        try:
            status, said = self._wire.ask(
                "approve", self._head("POST", machine), body, events=events, machine=machine
            )
        finally:  # a machine that approves has asked, whether or not it was answered
            self._asks.append((began, time.time(), machine))
        if status == 200:
            self._answered.update(events)
        elif status != FORBIDDEN or machine not in self._mortal:
            self._odd(status, said, machine)

    def close(self) -> None:
        """Note who asked last."""
        self._wire.journal.write("asked", asks=self._asks)

    def _odd(self, status: int, said: bytes, machine: str) -> None:
        self._wire.journal.write("odd", status=status, said=said.decode(), machine=machine)

    def _head(self, method: str, machine: str) -> str:
        path = f"/vm/{machine}/metadata/scheduledevents?api-version={VERSION}"
        return f"{method} {path} HTTP/1.1\r\nMetadata: true"


def main(cast: dict[str, Any]) -> None:
    """Take turns until it is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began it ends it
    chance = random.Random(cast["seed"])
    places = [each if isinstance(each, str) else tuple(each) for each in cast["places"]]
    journal = Journal(Path(cast["journal"]))
    wire = Wire(places, journal, may_be_away=cast.get("may_be_away", False))
    wire.at = cast.get("at", 0)
    client: Guest | operators.Operator
    if cast["role"] == "guest":
        client = Guest(wire, cast, chance)
    else:
        client = operators.Operator(wire, cast, chance)
    while not wire.ending:
        try:
            client.turn()
        except Broken:
            wire.pause(0.004)
        else:
            wire.pause(chance.uniform(*cast["pause"]))
    if isinstance(client, Guest):
        client.close()
    wire.say(ended=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
