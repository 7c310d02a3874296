"""Guests and operators as processes of their own: plain HTTP over sockets, nothing of forewarn.

Each appends and syncs what it sends before the first byte, and what it was answered. On its
standard input it takes orders, one JSON object a line: to kill the service in the midst of its
next request of a kind, to drop that order, to drain (ask for nothing new), to end. On its standard
output it says what became of them.
"""

import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kills.journal import Journal

ANSWER_SECONDS = 5.0
"""No answer takes longer, unless whoever should give it is gone."""


class Broken(Exception):  # noqa: N818 - what happened to the request
    """There was no answer.

    Args:
        why: For people.
        sent: Whether any of the request was: then nobody knows what became of it.
    """

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


UNAVAILABLE = 503
"""The answer of a replica that cannot reach its database: another may be able to."""


class Wire:
    """One connection, made anew when it breaks, and the client's journal.

    Args:
        places: Where the service is reached: several for replicas, of which the next one is taken
            when the connection breaks.
        may_be_away: Whether a 503 is no answer: where there are others, or behind a relay.
    """

    def __init__(
        self,
        places: Sequence[str | tuple[str, int]],
        journal: Journal,
        *,
        may_be_away: bool = False,
    ) -> None:
        self.journal = journal
        self._may_be_away = may_be_away or len(places) > 1
        self.at = 0
        """Which of the places it asks."""
        self._places = places
        self._socket: socket.socket | None = None
        self._input = b""
        self._order: dict[str, Any] | None = None
        self.draining = False
        self.ending = False

    @property
    def wanted(self) -> str:
        """The kind of request that an order waits for, `""` for none."""
        return str(self._order["kind"]) if self._order else ""

    def pause(self, seconds: float) -> None:
        """Let time pass, and take orders meanwhile."""
        until = time.monotonic() + seconds
        while not self.ending:
            left = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([0], [], [], left)
            if not ready:
                return
            data = os.read(0, 65536)
            if not data:
                self.ending = True
            *lines, self._input = (self._input + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if self._order:
                return

    def ask(self, kind: str, head: str, body: Any = None, **facts: Any) -> tuple[int, bytes]:
        """Send a request and return the answer's status and body.

        Raises:
            Broken: There was none.
        """
        changes = not head.startswith("GET ")
        data = b"" if body is None else json.dumps(body).encode()
        lines = [head, "Host: localhost", f"Content-Length: {len(data)}"]
        if body is not None:
            lines.append("Content-Type: application/json")
        request = ("\r\n".join(lines) + "\r\n\r\n").encode() + data
        self._connect()
        if changes:
            self.journal.write("sends", kind=kind, **facts)
        order = self._order if self.wanted == kind else None
        first = 0.0
        try:
            first = self._send(request, order)
            if order:
                self._kill(order)
            status, answer = self._answer()
            self._go_on_from(kind, status, answer)
        except (OSError, ValueError, HTTPException) as error:
            self.close()
            self._go_on()
            # With nothing sent there was no request: the service was gone before.
            if first:
                self.journal.write("unanswered", kind=kind, first=first, **facts)
            raise Broken(str(error), sent=first > 0) from error
        if changes:
            said = answer.decode()
            self.journal.write(
                "answered", kind=kind, first=first, status=status, said=said, **facts
            )
        return status, answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _go_on_from(self, kind: str, status: int, answer: bytes) -> None:
        """Note that a replica is away, where that may be; it counts as no answer."""
        if status == UNAVAILABLE and self._may_be_away:
            self.journal.write("away", request=kind, place=self.at, said=answer.decode())
            message = f"replica {self.at} is away"
            raise ValueError(message)

    def _go_on(self) -> None:
        self.at = (self.at + 1) % len(self._places)

    def say(self, **what: Any) -> None:
        print(json.dumps(what), flush=True)

    def _take(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "kill":
                self._order = order
            case "drop":
                if self._order:
                    self._order = None
                    self.say(killed=None)
            case "drain":
                self.draining = True
            case "end":
                self.ending = True

    def _connect(self) -> None:
        if self._socket is not None:
            return
        place = self._places[self.at]
        family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(ANSWER_SECONDS)
        try:
            made.connect(place)
        except OSError as error:
            made.close()
            self._go_on()
            raise Broken(str(error), sent=False) from error
        self._socket = made

    def _send(self, request: bytes, order: dict[str, Any] | None) -> float:
        """Send all of it, or its beginning where an order says so; return when it began."""
        assert self._socket is not None
        cut = int(len(request) * order["part"]) or 1 if order else len(request)
        self._socket.sendall(request[:cut])
        return time.time()

    def _kill(self, order: dict[str, Any]) -> None:
        assert self._socket is not None
        self._order = None
        pid = order["pids"][self.at]
        # An answer that comes first ends the wait: the kill then follows it as closely as it can.
        select.select([self._socket], [], [], order["delay"])
        before = time.time()
        os.kill(pid, signal.SIGKILL)
        self.say(killed=[before, time.time()], place=self.at)

    def _answer(self) -> tuple[int, bytes]:
        assert self._socket is not None
        with HTTPResponse(self._socket) as answer:
            answer.begin()
            status, body = answer.status, answer.read()
        if answer.will_close:
            self.close()
        return status, body


# Operators.

KINDS = {
    "request": 14.0,
    "cancel": 2.0,
    "vouch": 2.5,
    "postpone": 3.0,
    "hold": 1.5,
    "acknowledge": 1.5,
    "fleet": 1.0,
    "history": 4.0,
}
"""What it does, and how often beside the rest. To vouch is to approve on the guests' behalf; what
is held is released after a while."""

HELD_SECONDS = (0.5, 2.5)
"""How long a hold is on: long enough for kills and starts, and for a notice to run out."""

POSTPONED_MINUTES = (1, 12)
"""Of the service's time: up to a second and a bit of ours."""

LATEST = 8

REFUSED = {404, 409, 422}
"""What has gone, is taken, has started, is over, or may not move so: to be expected of anything."""


class Operator:
    """One of two, who know nothing of each other."""

    def __init__(self, wire: Wire, cast: dict[str, Any], chance: random.Random) -> None:
        self._wire = wire
        self._cast = cast
        self._name = cast["name"]
        self._chance = chance
        self._known: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()
        self._holds: list[tuple[float, dict[str, str]]] = []
        self._number = 0
        self._mark = 0

    def turn(self) -> None:
        due = [place for until, place in self._holds if time.monotonic() >= until]
        if self._wire.draining:
            self._drain()
        elif due and self._wire.wanted not in KINDS:
            self._release(due[0])
        else:
            kind = self._wire.wanted
            if kind == "release" and self._holds:
                self._release(self._holds[0][1])
                return
            if kind not in KINDS:
                (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
            if kind in {"cancel", "vouch", "postpone"} and not self._known:
                kind = "request"
            getattr(self, f"_{kind}")()

    def _request(self) -> None:
        self._number += 1
        body: dict[str, Any] = {
            "event_type": self._chance.choice(["Reboot", "Reboot", "Redeploy", "Freeze"]),
            "description": f"{self._name} asks {self._number}",
        } | self._target()
        status, answer = self._wire.ask(
            "request", "POST /v1/maintenances HTTP/1.1", body, asked=body
        )
        if status == 201:
            self._learn(json.loads(answer)["operations"])
        else:
            self._judge(status, answer)

    def _target(self) -> dict[str, Any]:
        """Return what maintenance is asked for: of a host, a scope, a few machines, or one."""
        kind = self._chance.random()
        if kind < 0.12:
            return {"hosts": [self._chance.choice(self._cast["hosts"])]}
        if kind < 0.27:
            return {"scopes": [self._chance.choice(self._cast["scopes"])]}
        if kind < 0.37:
            return {"machines": self._chance.sample(self._cast["machines"], 4)}
        if kind < 0.52:
            machine, goes = self._chance.choice(list(self._cast["mortal"].items()))
            return {"event_type": goes, "machines": [machine]}
        machine = self._chance.choice(self._cast["machines"])
        if self._chance.random() < 0.15:
            return {"event_type": "Reboot", "machines": [machine], "no_notice": True}
        return {"machines": [machine]}

    def _cancel(self) -> None:
        reference = self._one()
        del self._known[reference]
        if self._chance.random() < 0.3:  # the whole of it, with the turns of its units to come
            reference = reference.partition(".")[0]
        body = {"references": [reference], "reason": "changed my mind"}
        self._say("cancel", "POST /v1/cancellations", body, reference=reference)

    def _vouch(self) -> None:
        reference = self._one()
        events = [event["id"] for event in self._known[reference]["events"]]
        self._say("vouch", "POST /v1/approvals", {"references": [reference]}, events=events)

    def _postpone(self) -> None:
        """Move something later: mostly what is asked for now, which nobody has approved yet."""
        if self._chance.random() < 0.7:
            self._request()
        later = timedelta(minutes=self._chance.uniform(*POSTPONED_MINUTES))
        announced = [name for name, one in self._known.items() if one["not_before"]]
        if not announced:
            return
        reference = announced[-1]
        at = datetime.fromisoformat(self._known[reference]["not_before"]) + later
        body = {"references": [reference], "not_before": at.isoformat()}
        answer = self._say("postpone", "POST /v1/postponements", body, reference=reference)
        self._learn(answer.get("operations", ()))

    def _hold(self) -> None:
        place = self._place()
        until = time.monotonic() + self._chance.uniform(*HELD_SECONDS)
        body = {**place, "reason": "a storm"}
        try:
            status, answer = self._wire.ask("hold", "POST /v1/holds HTTP/1.1", body, place=place)
        except Broken as broken:
            if broken.sent:  # it may be on
                self._holds.append((until, place))
            raise
        if status == 201:
            self._holds.append((until, place))
        else:
            self._judge(status, answer)

    def _place(self) -> dict[str, str]:
        kinds = ["everything", *["scope", "machine", "host"] * 3]
        kind = self._chance.choice(kinds)
        named = self._cast.get(f"{kind}s")
        return {"kind": kind, "name": self._chance.choice(named) if named else ""}

    def _release(self, place: dict[str, str]) -> None:
        self._say("release", f"DELETE /v1/holds?{urlencode(place)}", None, place=place)
        self._holds = [one for one in self._holds if one[1] != place]

    def _acknowledge(self) -> None:
        if not self._failed:
            self._history()
            return
        references = [self._chance.choice(sorted(self._failed))]
        self._failed.difference_update(references)
        body = {"references": references, "even_if_down": True}
        self._say("acknowledge", "POST /v1/acknowledgements", body, references=references)

    def _fleet(self) -> None:
        """Mark its own machine anew, and bring back what was preempted or deleted."""
        self._mark += 1
        own = {"name": f"own-{self._name}", "tags": {"mark": str(self._mark)}}
        body = {"machine": [own], "scale_set": self._cast["revived"]}
        self._say("fleet", "PUT /v1/fleet?re_add=true", body, machine=own["name"], mark=self._mark)

    def _history(self) -> None:
        status, answer = self._wire.ask("history", "GET /v1/history?limit=30 HTTP/1.1")
        if status != 200:
            self._judge(status, answer)
            return
        operations = json.loads(answer)["operations"]
        over = [o for o in operations if o["ended_at"]]
        ends = {o["id"]: [o["status"], o["outcome"], o["ended_at"]] for o in over}
        self._wire.journal.write("ends", ends=ends)
        failed = [o for o in over if o["status"] == "Failed"]
        self._failed.update(o["id"] for o in failed if not o["acknowledged_by"])
        self._failed.difference_update(o["id"] for o in failed if o["acknowledged_by"])
        for operation in over:
            self._known.pop(operation["id"], None)
        self._learn(o for o in operations if o["status"] == "Scheduled")

    def _drain(self) -> None:
        """Do what alerts advise, release whatever is held, by whomever; then only read."""
        _, answer = self._wire.ask("history", "GET /v1/holds HTTP/1.1")
        held = [{"kind": one["kind"], "name": one["name"]} for one in json.loads(answer)["holds"]]
        _, answer = self._wire.ask("history", "GET /v1/alerts HTTP/1.1")
        alerts = json.loads(answer)["items"]
        self._failed.update(one["about"] for one in alerts if one["kind"] == "failed")
        stopped = [one["about"] for one in alerts if one["kind"] == "arrived"]
        if held:
            self._release(held[0])
        elif stopped:  # a machine that was brought back came to a host after its announcement
            body = {"references": stopped[:1], "reason": "a machine had no notice"}
            self._say("cancel", "POST /v1/cancellations", body, reference=stopped[0])
        elif self._failed:
            self._acknowledge()
        else:
            self._history()

    def _say(self, kind: str, what: str, body: Any, **facts: Any) -> Any:
        """Ask for something that may be refused; return what was answered, nothing if it was."""
        status, answer = self._wire.ask(kind, f"{what} HTTP/1.1", body, **facts)
        if status != 200:
            self._judge(status, answer)
            return {}
        return json.loads(answer)

    def _learn(self, operations: Any) -> None:
        for operation in operations:
            if operation["status"] == "Scheduled":
                self._known[operation["id"]] = operation

    def _one(self) -> str:
        """Return one of the latest operations that it knows of: an older one has its way behind."""
        return self._chance.choice(list(self._known)[-LATEST:])

    def _judge(self, status: int, answer: bytes) -> None:
        if status not in REFUSED:
            self._wire.journal.write("odd", status=status, said=answer.decode())


# Guests.

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

    def turn(self) -> None:
        machine = self._chance.choice(self._machines)
        began = time.time()
        status, body = self._wire.ask("read", self._head("GET", machine))
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
                replica=self._wire.at,
            )
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
        status, said = self._wire.ask(
            "approve", self._head("POST", machine), body, events=events, machine=machine
        )
        if status == 200:
            self._answered.update(events)
        elif status != FORBIDDEN or machine not in self._mortal:
            self._odd(status, said, machine)

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
    kind = Guest if cast["role"] == "guest" else Operator
    client = kind(wire, cast, chance)
    while not wire.ending:
        try:
            client.turn()
        except Broken:
            wire.pause(0.004)
        else:
            wire.pause(chance.uniform(*cast["pause"]))
    wire.say(ended=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
