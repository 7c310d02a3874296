"""One client's connection: its requests, its journal of them, and the orders that it takes.

Orders come on the standard input, one JSON object a line; what became of them is said on the
standard output. Nothing here imports anything of the service.
"""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

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
        except (OSError, ValueError) as error:
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
