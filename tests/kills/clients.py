"""Guests and an operator as processes of their own: plain HTTP over sockets, nothing of forewarn.

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
from pathlib import Path
from typing import Any

from kills.journal import Journal

ANSWER_SECONDS = 5.0
"""No answer takes longer, unless whoever should give it is gone."""

VERSION = "2020-07-01"


class Broken(Exception):  # noqa: N818 - what happened to the request
    """There was no answer: nobody knows what became of the request."""


class Wire:
    """One connection, made anew when it breaks, and the client's journal."""

    def __init__(self, place: str | tuple[str, int], journal: Journal) -> None:
        self.journal = journal
        self._place = place
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
        data = b"" if body is None else json.dumps(body).encode()
        lines = [head, "Host: localhost", f"Content-Length: {len(data)}"]
        if body is not None:
            lines.append("Content-Type: application/json")
        request = ("\r\n".join(lines) + "\r\n\r\n").encode() + data
        self._connect()
        if body is not None:
            self.journal.write("sends", kind=kind, **facts)
        order = self._order if self.wanted == kind else None
        first = 0.0
        try:
            first = self._send(request, order)
            if order:
                self._kill(order)
            status, answer = self._answer()
        except (OSError, ValueError) as error:
            self.close()
            # With nothing sent there was no request: the service was gone before.
            if first:
                self.journal.write("unanswered", kind=kind, first=first, **facts)
            raise Broken(str(error)) from error
        if body is not None:
            said = answer.decode()
            self.journal.write(
                "answered", kind=kind, first=first, status=status, said=said, **facts
            )
        return status, answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

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
        family = socket.AF_UNIX if isinstance(self._place, str) else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(ANSWER_SECONDS)
        try:
            made.connect(self._place)
        except OSError as error:
            made.close()
            raise Broken(str(error)) from error
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
        # An answer that comes first ends the wait: the kill then follows it as closely as it can.
        select.select([self._socket], [], [], order["delay"])
        before = time.time()
        os.kill(order["pid"], signal.SIGKILL)
        self.say(killed=[before, time.time()])

    def _answer(self) -> tuple[int, bytes]:
        assert self._socket is not None
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        length = int(fields.get("content-length", "0"))
        while len(body) < length:
            body += self._more()
        if fields.get("connection", "").lower() == "close":
            self.close()
        return int(first.split()[1]), body

    def _more(self) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(65536)
        if not data:
            message = "closed without an answer"
            raise ValueError(message)
        return data


class Guest:
    """The machines of one scope: reads its document again and again, and approves some events."""

    def __init__(self, wire: Wire, cast: dict[str, Any], chance: random.Random) -> None:
        self._wire = wire
        self._scope = cast["scope"]
        self._machines = cast["machines"]
        self._chance = chance
        self._approves: dict[str, float] = {}
        self._answered: set[str] = set()
        self._last: tuple[int, bytes] | None = None

    def turn(self) -> None:
        machine = self._chance.choice(self._machines)
        status, body = self._wire.ask("read", self._head("GET", machine))
        if status != 200:
            self._wire.journal.write("odd", status=status, said=body.decode(), machine=machine)
            return
        document = json.loads(body)
        seen = (document["DocumentIncarnation"], body)
        if seen != self._last:
            self._last = seen
            self._wire.journal.write("read", scope=self._scope, document=document)
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
        else:
            self._wire.journal.write("odd", status=status, said=said.decode(), machine=machine)

    def _head(self, method: str, machine: str) -> str:
        path = f"/vm/{machine}/metadata/scheduledevents?api-version={VERSION}"
        return f"{method} {path} HTTP/1.1\r\nMetadata: true"


class Operator:
    """Asks for maintenance, withdraws some of it, and reads how it ended."""

    def __init__(self, wire: Wire, cast: dict[str, Any], chance: random.Random) -> None:
        self._wire = wire
        self._name = cast["name"]
        self._machines = cast["machines"]
        self._scopes = cast["scopes"]
        self._hosts = cast["hosts"]
        self._chance = chance
        self._known: list[str] = []
        self._number = 0

    def turn(self) -> None:
        kind = self._wire.wanted
        if kind not in {"request", "cancel", "history"}:
            kind = self._chance.choices(["request", "cancel", "history"], [6, 2, 3])[0]
        if self._wire.draining:
            kind = "history"
        if kind == "cancel" and not self._known:
            kind = "request"
        getattr(self, f"_{kind}")()

    def _request(self) -> None:
        self._number += 1
        event_type = self._chance.choice(["Reboot", "Reboot", "Redeploy", "Freeze"])
        body: dict[str, Any] = {
            "event_type": event_type,
            "description": f"{self._name} asks {self._number}",
            "by": self._name,
        }
        kind = self._chance.random()
        if kind < 0.1:
            body["host"] = self._chance.choice(self._hosts)
        elif kind < 0.25:
            body["scope"] = self._chance.choice(self._scopes)
        else:
            body["machines"] = [self._chance.choice(self._machines)]
            body["no_notice"] = event_type == "Reboot" and self._chance.random() < 0.2
        status, answer = self._wire.ask(
            "request", "POST /v1/maintenance HTTP/1.1", body, asked=body
        )
        if status == 201:
            self._known.extend(o["id"] for o in json.loads(answer)["operations"])
        elif status not in {404, 409}:  # a host without machines, a machine that is taken
            self._wire.journal.write("odd", status=status, said=answer.decode())

    def _cancel(self) -> None:
        reference = self._known.pop(self._chance.randrange(len(self._known)))
        body = {"reference": reference, "reason": "changed my mind", "by": self._name}
        status, answer = self._wire.ask(
            "cancel", "POST /v1/cancellations HTTP/1.1", body, reference=reference
        )
        if status not in {200, 409}:
            self._wire.journal.write("odd", status=status, said=answer.decode())

    def _history(self) -> None:
        status, answer = self._wire.ask("history", "GET /v1/history?limit=30 HTTP/1.1")
        if status != 200:
            self._wire.journal.write("odd", status=status, said=answer.decode())
            return
        over = [o for o in json.loads(answer)["operations"] if o["ended_at"]]
        ends = {o["id"]: [o["status"], o["outcome"], o["ended_at"]] for o in over}
        self._wire.journal.write("ends", ends=ends)


def main(cast: dict[str, Any]) -> None:
    """Take turns until it is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began it ends it
    chance = random.Random(cast["seed"])
    place = cast["place"] if isinstance(cast["place"], str) else tuple(cast["place"])
    wire = Wire(place, Journal(Path(cast["journal"])))
    client = (Guest if cast["role"] == "guest" else Operator)(wire, cast, chance)
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
