"""Requests that wait for their document to change (protocol.md section 10).

A waiting request is a place in a set: no task, no thread, no timer of its own. The feed wakes all
that wait on a scope in one pass, the sweep over the connections' times ends what waited long
enough, and who is woken is answered in slices, so that 9,000 answers never hold up the next
guest's for long.

Who asks was settled when the request came. If that machine moves to another scope meanwhile, it is
answered from there; if it is removed, it is refused as any stranger is.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from forewarn.maintenance.model import Changes
from forewarn.protocol.exchange import DocumentWanted, Reply
from forewarn.server.guest.callers import Source
from forewarn.server.guest.tally import Reason, Tally

SLICE: Final = 64
"""Waiting requests answered before other connections have their turn: about a millisecond."""


class Waiter(Protocol):
    """Who holds a waiting request's connection."""

    def wake(self, reply: Reply) -> None:
        """Give the answer; the request waits no more."""
        ...


class Wait:
    """A request whose answer waits.

    Args:
        wanted: What it asks for.
        source: Where it came from.
        machine: The key of the machine that asks.
        scope: The key of the scope whose document it waits for.
    """

    __slots__ = ("is_over", "is_queued", "machine", "scope", "source", "waiter", "wanted")

    waiter: Waiter

    def __init__(self, wanted: DocumentWanted, source: Source, machine: str, scope: str) -> None:
        self.wanted = wanted
        self.source = source
        self.machine = machine
        self.scope = scope
        self.is_over = False
        """Whether it is to be answered even if nothing has changed."""
        self.is_queued = False


class Looking(Protocol):
    """What is asked about a waiting request, as of the last change."""

    def look(self, wait: Wait) -> Reply | None:
        """Return what it is answered with now, None while there is nothing new for it."""
        ...

    def scope_of(self, machine_key: str) -> str | None:
        """Return the key of a machine's scope, None where there is no such machine."""
        ...


class Waiting:
    """All requests that wait; used on the event loop alone.

    Args:
        endpoint: Knows what they are answered with.
        limit: How many may wait.
        tally: Where those are counted that were not let in.
        loop: The event loop.
    """

    def __init__(
        self, endpoint: Looking, limit: int, tally: Tally, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._endpoint = endpoint
        self._limit = limit
        self._tally = tally
        self._loop = loop
        self._of_scope: dict[str, set[Wait]] = {}
        self._count = 0
        self._woken: deque[Wait] = deque()
        self._is_waking = False

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def admit(self, wait: Wait, waiter: Waiter) -> bool:
        """Let a request wait, unless too many do; return whether it may."""
        if self._count >= self._limit:
            self._tally[Reason.WAITERS] += 1
            return False
        wait.waiter = waiter
        self._put(wait)
        return True

    def forget(self, wait: Wait) -> None:
        """Leave a request out that waits no more; whoever is gone already is no matter."""
        group = self._of_scope.get(wait.scope)
        if group is None or wait not in group:
            return
        group.remove(wait)
        self._count -= 1
        if not group:
            del self._of_scope[wait.scope]

    def _put(self, wait: Wait) -> None:
        self._of_scope.setdefault(wait.scope, set()).add(wait)
        self._count += 1

    def learn(self, changes: Changes) -> None:
        """Wake whom a change concerns, once the registry and the documents have learned of it."""
        for key in (*(scope.key for scope in changes.scopes), *changes.removed_scopes):
            for wait in self._of_scope.get(key, ()):
                self._queue(wait)
        if changes.machines or changes.removed_machines:
            scope_of = self._endpoint.scope_of
            for key, group in self._of_scope.items():
                for wait in group:
                    if scope_of(wait.machine) != key:
                        self._queue(wait)
        self._wake()

    def end(self, wait: Wait) -> None:
        """Have a request answered soon, whether or not anything has changed."""
        wait.is_over = True
        self._queue(wait)
        self._wake_soon()

    def _queue(self, wait: Wait) -> None:
        if not wait.is_queued:
            wait.is_queued = True
            self._woken.append(wait)

    def _wake_on(self) -> None:
        self._is_waking = False
        self._wake()

    def _wake(self) -> None:
        """Answer the next few of those that were woken."""
        try:
            for _ in range(min(SLICE, len(self._woken))):
                self._wake_one(self._woken.popleft())
        finally:  # a fault with one of them must not be the end of the others' waiting
            self._wake_soon()

    def _wake_soon(self) -> None:
        if self._woken and not self._is_waking:
            self._is_waking = True
            self._loop.call_soon(self._wake_on)

    def _wake_one(self, wait: Wait) -> None:
        wait.is_queued = False
        group = self._of_scope.get(wait.scope)
        if group is None or wait not in group:
            return  # its client has gone
        scope = self._endpoint.scope_of(wait.machine)
        reply = self._endpoint.look(wait)
        if reply is not None:
            self.forget(wait)
            wait.waiter.wake(reply)
        elif scope is not None and scope != wait.scope:
            self.forget(wait)
            wait.scope = scope
            self._put(wait)
