"""Polls that repeat themselves to the byte, and what is saved of judging them again.

Pollers send the same bytes once a second, for ever. So bytes that were judged once are remembered,
and so is, for each connection, what its last request came to: the machine and the answer, until
anything changes in the fleet. What a request does besides being answered happens each time: it is
held to its machine's rate, turns its scope on, and the machine was seen. That is 6 us of the
processor for a poll instead of 38 (docs/decisions/0011).

Remembered is one whole GET of the events without a body, which came alone on a connection between
two requests (so no parser has half a head), was answered with 200 or 304, and named nobody: no path
of a machine, no proxy's claim. So it is judged alike wherever it comes from, with two exceptions: a
trusted proxy's requests are never remembered, and a loopback listener, which refuses those of web
pages, takes only what was judged on one. Whether its answer ends the connection is remembered as
well. Anything else, and any doubt, goes the long way through `GuestEndpoint`, which decides alone
what is right.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from forewarn.protocol import exchange
from forewarn.protocol.exchange import GetDocument, ValidRequest
from forewarn.protocol.message import Reply
from forewarn.server.guest import http
from forewarn.server.guest.documents import Documents
from forewarn.server.guest.enablement import Enabler
from forewarn.server.guest.http import AnswerWriter
from forewarn.server.guest.limits import Limiter
from forewarn.server.guest.machines import Caller, LastRequest, Registry, Source

MAX_BYTES: Final = 1024
"""The longest request that is remembered: clients send less."""

MAX_KNOWN: Final = 2048
"""Requests that are remembered and were asked for lately, and as many that were before: a fleet's
clients and versions are dozens. All of them are under 5 MB, whoever fills them."""


class KnownPoll(msgspec.Struct, eq=False):
    """What remembered bytes ask for."""

    data: bytes
    wanted: GetDocument
    is_last: bool
    """Whether the answer ends the connection."""
    on_loopback: bool
    """Whether they were judged on a loopback listener."""
    last_request: LastRequest | None = None
    """When they came last, and by which version: one object for all that ask in a second."""


class Poll(msgspec.Struct, eq=False):
    """What a connection's last request came to, as of a generation of the fleet."""

    known: KnownPoll
    data: bytes
    is_last: bool
    caller: Caller
    scope: str
    """The key of the machine's scope."""
    generation: int
    status: int
    ending: bytes
    """All of the answer but its beginning, which is another one each time."""


@dataclass(eq=False, repr=False)
class Polls:
    """Remembers polls; used on the event loop alone."""

    registry: Registry
    documents: Documents
    limiter: Limiter
    writer: AnswerWriter
    enabler: Enabler | None = None
    generation: int = 0
    """Grows with every change of the fleet; what is of an older one is looked up again."""
    _known: dict[bytes, KnownPoll] = field(default_factory=dict)
    _earlier: dict[bytes, KnownPoll] = field(default_factory=dict)
    _is_closed: bool = False

    def learn(self) -> None:
        """Note that something has changed in the fleet."""
        self.generation += 1

    def close(self) -> None:
        """Remember nothing more: from now on each answer is the last of its connection."""
        self._is_closed = True
        self.generation += 1

    def remember(
        self,
        data: bytes,
        source: Source,
        wanted: ValidRequest,
        reply: Reply,
        *,
        is_last: bool,
    ) -> None:
        """Remember a request that came whole and alone, if it is one to be remembered."""
        if (
            len(data) <= MAX_BYTES
            and isinstance(wanted, GetDocument)
            and wanted.machine is None
            and not wanted.wait_seconds
            and reply.status in {200, 304}
        ):
            known = KnownPoll(data, wanted, is_last=is_last, on_loopback=source.vm_paths)
            self._put(known)

    def _put(self, known: KnownPoll) -> None:
        if len(self._known) >= MAX_KNOWN:
            self.generation += 1  # connections look again, and so what they use stays remembered
            self._earlier, self._known = self._known, {}
        self._known[known.data] = known

    def find(self, source: Source, data: bytes) -> Poll | None:
        """Return what these bytes come to from there, None where the long way must tell."""
        known = self._known.get(data)
        if known is None:
            known = self._earlier.get(data)
            if known is None:
                return None
            self._put(known)
        if source.vm_paths and not known.on_loopback:
            return None
        machine = None if source.trusted_proxy or self._is_closed else self.registry.at(source)
        if machine is None:
            return None
        caller = self.registry.caller(machine)
        if caller.last_request is None:
            return None
        try:
            page = self.documents.page(machine.scope, known.wanted.version)
        except KeyError:
            return None
        if known.wanted.if_none_match.is_ahead_of(page.incarnation):
            return None  # the answer waits until this process has caught up
        is_held = known.wanted.if_none_match.matches(page.incarnation)
        ending = page.endings.get((is_held, known.is_last))
        if ending is None:
            reply = exchange.document_reply(known.wanted, page.incarnation, page.body)
            ending = http.ending(reply, keep=not known.is_last)
            page.endings[is_held, known.is_last] = ending
        return Poll(
            known,
            known.data,
            known.is_last,
            caller,
            machine.scope,
            self.generation,
            304 if is_held else 200,
            ending,
        )

    def answer(self, poll: Poll, now: float) -> bytes | None:
        """Do what a request does besides being answered, and return its answer.

        None, and nothing was done, where the long way must tell.
        """
        enabler = self.enabler
        if enabler is not None and not enabler.is_on(poll.scope):
            return None
        caller = poll.caller
        known = poll.known
        if known.wanted.agent is not None and known.wanted.agent != caller.agent:
            return None
        if not self.limiter.allows(caller, now):
            return None
        writer = self.writer
        if now >= writer.until:
            writer.tick(now)
        last = known.last_request
        if last is None or last[0] is not writer.second:
            last = known.last_request = (writer.second, known.wanted.version.name)
        caller.last_request = last
        return writer.put(poll.status, poll.ending)
