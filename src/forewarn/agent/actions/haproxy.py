"""A server of HAProxy that is drained by the runtime API; afterwards it is as it was.

A server that an administrator has set to `maint` or `drain` is left so: it gets no new sessions
already, and `drain` would let those in again that are bound to it by a cookie.

The API takes one line a connection and answers with text; `set server` answers nothing when it was
done. What is asked for and how the answers look is in HAProxy's Management Guide, section 9.3.
"""

import contextlib
import csv
import io
import socket
from typing import Final

from forewarn.agent.actions.work import Cut, Failed, Work
from forewarn.agent.steps import Haproxy as Terms

ANSWER_SECONDS: Final = 5.0
"""For one answer: HAProxy gives it at once, or is in trouble."""

ANSWER_BYTES: Final = 16 * 1024 * 1024
"""The longest answer that is read: the statistics of ten thousand servers."""

LOOK_SECONDS: Final = 0.5
"""Between two looks at the sessions that are left."""

READY: Final = "ready"
MAINTENANCE: Final = 0x01
DRAINED: Final = 0x08
"""Of a server's administrative state: what an administrator forced by the API or the page."""


class Haproxy:
    """Drains a server.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._backend, _, self._server = terms.server.partition("/")

    def prepare(self, work: Work) -> str:
        """Note how the server is, drain it, and wait for its last session."""
        state = self._state(work)
        work.note({"state": state})
        if state == READY:
            self._set("drain", work)
        left: int | None = None
        try:
            while self._terms.wait_sessions and (left := self._sessions(work)):
                work.wait(LOOK_SECONDS)
        except Cut as cut:
            message = f"sessions left: {'not counted yet' if left is None else left}"
            raise Cut(message) from cut
        return ""

    def recover(self, work: Work) -> str:
        """Make the server ready if it was; where nothing was noted nothing was changed."""
        before = (work.facts or {}).get("state", "")
        if not before:
            return ""
        if before != READY:
            return f"{self._terms.server} was set to {before}, and is left so"
        self._set(READY, work)
        return f"{self._terms.server} is set to {READY} again"

    def _state(self, work: Work) -> str:
        """Return what the server is set to: `ready`, `drain` or `maint`."""
        lines = self._ask(f"show servers state {self._backend}", work).splitlines()
        names = next((line[2:].split() for line in lines if line.startswith("# ")), [])
        for line in lines:
            row = dict(zip(names, line.split(), strict=False))
            if row.get("srv_name") == self._server:
                admin = int(row["srv_admin_state"])
                return "maint" if admin & MAINTENANCE else "drain" if admin & DRAINED else READY
        message = f"HAProxy has no server {self._terms.server}"
        raise Failed(message)

    def _sessions(self, work: Work) -> int:
        table = self._ask("show stat", work).removeprefix("# ")
        for row in csv.DictReader(io.StringIO(table)):
            if (row["pxname"], row["svname"]) == (self._backend, self._server):
                return int(row["scur"])
        message = f"HAProxy has no server {self._terms.server} any more"
        raise Failed(message)

    def _set(self, state: str, work: Work) -> None:
        answer = self._ask(f"set server {self._terms.server} state {state}", work).strip()
        if answer:
            raise Failed(answer)

    def _ask(self, line: str, work: Work) -> str:
        try:
            with self._connected() as connection, work.ending(lambda: _hang_up(connection)):
                connection.sendall(line.encode() + b"\n")
                answer = b""
                while chunk := connection.recv(65536):
                    answer += chunk
                    if len(answer) > ANSWER_BYTES:
                        message = f"HAProxy's answer to {line!r} is over {ANSWER_BYTES} bytes"
                        raise Failed(message)
        except OSError as error:
            if work.stopped:
                raise Cut from error
            message = f"HAProxy's API at {self._terms.socket} does not answer: {error}"
            raise Failed(message) from error
        return answer.decode("utf-8", "replace")

    def _connected(self) -> socket.socket:
        if self._terms.address is not None:
            return socket.create_connection(self._terms.address, ANSWER_SECONDS)
        family = getattr(socket, "AF_UNIX", None)
        if family is None:
            message = f"this platform has no unix sockets for {self._terms.socket}"
            raise Failed(message)
        connection = socket.socket(family)
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(self._terms.socket)
        except OSError:
            connection.close()
            raise
        return connection


def _hang_up(connection: socket.socket) -> None:
    """End what waits for an answer, from another thread: a close alone would not wake it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
