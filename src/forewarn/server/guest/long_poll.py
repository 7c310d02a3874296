"""Requests that wait for their document to change (protocol.md section 10).

A waiting request is an entry in a set: no task, no thread, no timer of its own. The changefeed
wakes all that wait on a scope in one pass, the sweep over the connections' times ends what waited
long enough, and who is woken is answered in slices, so that 9,000 answers never hold up the next
guest's for long.

Who asks was settled when the request came. If that machine moves to another scope meanwhile, it is
answered from there; if it is removed, it is refused as any stranger is.
"""

import asyncio
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

from forewarn.maintenance.model import Changes
from forewarn.protocol.exchange import GetDocument
from forewarn.server.guest.machines import Source

if TYPE_CHECKING:
    from forewarn.server.guest.connection import Connection
    from forewarn.server.guest.endpoint import GuestEndpoint

SLICE: Final = 64
"""Waiting requests answered before other connections have their turn: about a millisecond."""


class LongPoll(msgspec.Struct, eq=False):
    """A request whose answer waits, by the keys of its machine and of its scope."""

    wanted: GetDocument
    source: Source
    machine: str
    scope: str
    seconds: int
    """How long it may wait."""
    is_over: bool = False
    """Whether it is to be answered even if nothing has changed."""
    is_queued: bool = False
    connection: "Connection | None" = None


class LongPolls:
    """All requests that wait; used on the event loop alone."""

    def __init__(self, endpoint: "GuestEndpoint", loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._of_scope: dict[str, set[LongPoll]] = {}
        self._count = 0
        self._woken: deque[LongPoll] = deque()
        self.is_waking = False
        """Whether more are answered at the loop's next turn."""

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def add(self, poll: LongPoll, connection: "Connection") -> None:
        """Let a request wait; its connection is told to answer it."""
        poll.connection = connection
        self._put(poll)

    def forget(self, poll: LongPoll) -> None:
        """Leave a request out that waits no more; one that is gone already is no matter."""
        group = self._of_scope.get(poll.scope)
        if group is None or poll not in group:
            return
        group.remove(poll)
        self._count -= 1
        if not group:
            del self._of_scope[poll.scope]

    def _put(self, poll: LongPoll) -> None:
        self._of_scope.setdefault(poll.scope, set()).add(poll)
        self._count += 1

    def learn(self, changes: Changes) -> None:
        """Wake those that a change concerns, once machines and documents have learned of it."""
        for key in (*(scope.key for scope in changes.scopes), *changes.removed_scopes):
            for poll in self._of_scope.get(key, ()):
                self._queue(poll)
        if changes.machines or changes.removed_machines:
            scope_of = self._endpoint.scope_of
            for key, group in self._of_scope.items():
                for poll in group:
                    if scope_of(poll.machine) != key:
                        self._queue(poll)
        self._wake()

    def end(self, poll: LongPoll) -> None:
        """Have a request answered soon, whether or not anything has changed."""
        poll.is_over = True
        self._queue(poll)
        self._wake_soon()

    def end_all(self, scopes: Collection[str], machines: Collection[str]) -> None:
        """Have the requests of these machines answered soon, found by their scopes (keys)."""
        for scope in scopes:
            for poll in [p for p in self._of_scope.get(scope, ()) if p.machine in machines]:
                self.end(poll)

    def _queue(self, poll: LongPoll) -> None:
        if not poll.is_queued:
            poll.is_queued = True
            self._woken.append(poll)

    def _wake_on(self) -> None:
        self.is_waking = False
        self._wake()

    def _wake(self) -> None:
        try:
            for _ in range(min(SLICE, len(self._woken))):
                self._wake_one(self._woken.popleft())
        finally:  # a fault with one of them must not be the end of the others' waiting
            self._wake_soon()

    def _wake_soon(self) -> None:
        if self._woken and not self.is_waking:
            self.is_waking = True
            self._loop.call_soon(self._wake_on)

    def _wake_one(self, poll: LongPoll) -> None:
        poll.is_queued = False
        group = self._of_scope.get(poll.scope)
        if group is None or poll not in group:
            return  # its client has gone
        scope = self._endpoint.scope_of(poll.machine)
        reply = self._endpoint.look(poll)
        if reply is not None:
            self.forget(poll)
            assert poll.connection is not None  # `add` gave it
            poll.connection.wake(reply)
        elif scope is not None and scope != poll.scope:
            self.forget(poll)
            poll.scope = scope
            self._put(poll)
