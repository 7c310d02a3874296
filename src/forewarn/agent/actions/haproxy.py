"""The action `haproxy`, which takes a machine out of use before maintenance, and puts it back.

It drains a server by the runtime API, which takes one line a connection and answers with
text; `set server` answers nothing when it was done (Management Guide, section 9.3). A server that
an administrator has set to `maint` or `drain` before, or to `maint` meanwhile, is left so: it gets
no new sessions already, and `drain` would let those in again that are bound to it by a cookie.
"""

import csv
import io
from typing import Final

from forewarn.agent.actions.action import Action, ActionFailed, ActionStopped, hang_up
from forewarn.agent.rules import HaproxySettings
from forewarn.client import transport

ANSWER_SECONDS: Final = 5.0
"""The time limit of one answer: HAProxy gives it at once, or is in trouble."""

ANSWER_BYTES: Final = 16 * 1024 * 1024
"""The longest answer that is read: the statistics of ten thousand servers."""

LOOK_SECONDS: Final = 0.5
"""The pause between two looks at the sessions that are left, or at a server that is to come up."""

READY: Final = "ready"
MAINT: Final = "maint"
MAINTENANCE: Final = 0x01
DRAINED: Final = 0x08
"""Bits of a server's administrative state: set by an administrator with the API or the page."""

UP: Final = frozenset({"1", "2"})
"""Values of a server's operational state: starting or running. Without checks it always is."""


class HaproxyAction(Action[HaproxySettings]):
    """Notes a server's state, drains it, and waits for its last session."""

    def prepare(self) -> str:
        row = self._row()
        state = _state(row)
        self.run.note({"state": state, "up": _is_up(row)})
        if state == READY:
            self._set("drain")
        left: int | None = None
        try:
            while self.settings.wait_sessions and (left := self._sessions()):
                self.run.wait(LOOK_SECONDS)
        except ActionStopped as cut:
            message = f"sessions left: {'not counted yet' if left is None else left}"
            raise ActionStopped(message) from cut
        return ""

    def recover(self) -> str:
        facts = self.run.begun.facts or {}
        before = facts.get("state", "")
        if not before:
            return ""  # where nothing was noted nothing was changed
        if before != READY:
            return f"{self.settings.server} was set to {before}, and is left so"
        if (now := _state(self._row())) == MAINT:  # an administrator's: we set `drain`
            return f"{self.settings.server} is set to {now} by now, and is left so"
        self._set(READY)
        if facts.get("up"):
            self._wait_until_up()
        return f"{self.settings.server} is set to {READY} again"

    def _wait_until_up(self) -> None:
        """Wait until the checks let the server have sessions: then the agent says `back`."""
        try:
            while _state(row := self._row()) == READY and not _is_up(row):
                self.run.wait(LOOK_SECONDS)
        except ActionStopped as cut:
            raise ActionStopped(f"HAProxy's checks still find {self.settings.server} down") from cut

    def _row(self) -> dict[str, str]:
        backend, _, server = self.settings.server.partition("/")
        lines = self._ask(f"show servers state {backend}").splitlines()
        names = next((line[2:].split() for line in lines if line.startswith("# ")), [])
        for line in lines:
            row = dict(zip(names, line.split(), strict=False))
            if row.get("srv_name") == server:
                return row
        raise ActionFailed(f"HAProxy has no server {self.settings.server}")

    def _sessions(self) -> int:
        table = self._ask("show stat").removeprefix("# ")
        for row in csv.DictReader(io.StringIO(table)):
            if f"{row['pxname']}/{row['svname']}" == self.settings.server:
                return int(row["scur"])
        raise ActionFailed(f"HAProxy has no server {self.settings.server} any more")

    def _set(self, state: str) -> None:
        if answer := self._ask(f"set server {self.settings.server} state {state}").strip():
            raise ActionFailed(answer)

    def _ask(self, line: str) -> str:
        try:
            connection = transport.connect(
                self.settings.address or self.settings.socket, ANSWER_SECONDS
            )
            with connection, self.run.on_stop(lambda: hang_up(connection)):
                connection.sendall(line.encode() + b"\n")
                answer = b""
                while chunk := connection.recv(65536):
                    answer += chunk
                    if len(answer) > ANSWER_BYTES:
                        message = f"HAProxy's answer to {line!r} is over {ANSWER_BYTES} bytes"
                        raise ActionFailed(message)
        except OSError as error:
            if self.run.stopped:
                raise ActionStopped from error
            message = f"HAProxy's API at {self.settings.socket} does not answer: {error}"
            raise ActionFailed(message) from error
        if self.run.stopped:  # who is hung up on reads an end, as if the answer were whole
            raise ActionStopped
        if not (b"\n" + answer).endswith(b"\n\n"):  # each ends with an empty line
            raise ActionFailed(f"HAProxy broke off its answer to {line!r}")
        return answer.decode("utf-8", "replace")


def _state(row: dict[str, str]) -> str:
    admin = int(row["srv_admin_state"])
    return MAINT if admin & MAINTENANCE else "drain" if admin & DRAINED else READY


def _is_up(row: dict[str, str]) -> bool:
    return row["srv_op_state"] in UP
