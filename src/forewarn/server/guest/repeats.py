"""Requests that repeat themselves to the byte, and what is saved of judging them again.

Pollers send the same bytes once a second, for ever. So bytes that were judged once are remembered,
and so is, for each connection, what its last request came to: the machine and the answer, until
anything changes in the fleet. What a request does besides being answered happens each time: it is
held to its machine's rate, turns its scope on, and the machine was seen.

Remembered is one whole GET of the events without a body, which came alone on a connection between
two requests (so no parser has half a head), was answered with 200 or 304, and named nobody: no path
of a machine, no proxy's claim. Whether its answer ends the connection is remembered as well. Where
it was judged is part of what it is remembered by: the listener, and what that listener trusts its
peer with. Anything else, and any doubt, goes the long way through `exchange`, which decides alone
what is right.
"""

from typing import Final

from forewarn.protocol import exchange
from forewarn.protocol.exchange import DocumentWanted, Reply, Wanted
from forewarn.server.guest import writing
from forewarn.server.guest.asking import Askings
from forewarn.server.guest.callers import Asked, Registry, Sighting, Source
from forewarn.server.guest.documents import Documents
from forewarn.server.guest.rate import Limiter
from forewarn.server.guest.writing import Writer

MAX_BYTES: Final = 1024
"""The longest request that is remembered: clients send less."""

MAX_KNOWN: Final = 2048
"""Requests that are remembered and were asked for lately, and as many that were before: a fleet's
clients and versions are dozens. All of them are under 5 MB, whoever fills them."""


class Known:
    """What remembered bytes ask for.

    Args:
        data: The bytes.
        wanted: What they were judged to be.
        is_last: Whether the answer ends the connection.
    """

    __slots__ = ("data", "is_last", "sighting", "wanted")

    def __init__(self, data: bytes, wanted: DocumentWanted, *, is_last: bool) -> None:
        self.data = data
        self.wanted = wanted
        self.is_last = is_last
        self.sighting: Sighting | None = None
        """When they came last, and by which version: one object for all that ask in a second."""


class Place:
    """Where requests are judged alike: a listener, and what it trusts its peer with.

    Args:
        source: Any connection's there.
    """

    __slots__ = ("default_vm", "earlier", "known", "listener")

    def __init__(self, source: Source) -> None:
        self.listener = source.listener
        self.default_vm = source.default_vm
        self.known: dict[bytes, Known] = {}
        self.earlier: dict[bytes, Known] = {}


class Repeat:
    """What a connection's last request came to.

    Args:
        known: The request.
        asked: What is kept of the machine that asks.
        scope: The key of its scope.
        ending: The answer but for its beginning, which is new each time.
        generation: As of which change of the fleet.
    """

    __slots__ = ("asked", "data", "ending", "generation", "is_last", "known", "scope", "status")

    def __init__(
        self, known: Known, asked: Asked, scope: str, ending: "writing.Ending", generation: int
    ) -> None:
        self.known = known
        self.data = known.data
        self.is_last = known.is_last
        self.asked = asked
        self.scope = scope
        self.status = ending.status
        self.ending = ending.last if known.is_last else ending.stays
        self.generation = generation


class Repeats:
    """Remembers requests; used on the event loop alone.

    Args:
        registry: Who asks.
        documents: What they read.
        limiter: How often a machine may ask.
        writer: Writes the answers.
        askings: Turns scopes on; None where all are always on.
    """

    def __init__(
        self,
        registry: Registry,
        documents: Documents,
        *,
        limiter: Limiter,
        writer: Writer,
        askings: Askings | None = None,
    ) -> None:
        self._registry = registry
        self._documents = documents
        self._limiter = limiter
        self._writer = writer
        self._askings = askings
        self._places: dict[object, Place] = {}
        self._count = 0
        self._is_closed = False
        self.generation = 0
        """Grows with every change of the fleet; what is of an older one is found anew."""

    def place(self, source: Source) -> Place:
        """Return where a connection's requests are judged."""
        key = self.key(source)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(source)
        return place

    def key(self, source: Source) -> object:
        """Return all that a request is judged by, and its machine looked up by, but the address."""
        return (
            source.listener,
            source.trusted_proxy,
            source.without_header,
            source.vm_paths,
            source.default_vm,
        )

    def learn(self) -> None:
        """Note that something has changed in the fleet."""
        self.generation += 1

    def close(self) -> None:
        """Remember nothing more: from now on each answer is the last of its connection."""
        self._is_closed = True
        self.generation += 1

    def remember(
        self, place: Place, data: bytes, wanted: Wanted | Reply, reply: Reply, *, is_last: bool
    ) -> None:
        """Remember a request, if it is one to be remembered.

        Args:
            place: Where it came to.
            data: Its bytes: one whole request without a body.
            wanted: What it was judged to be.
            reply: What it was answered with.
            is_last: Whether its connection ends with the answer.
        """
        if (
            len(data) <= MAX_BYTES
            and isinstance(wanted, DocumentWanted)
            and wanted.machine is None
            and not wanted.wait_seconds
            and reply.status in {200, 304}
        ):
            self._put(place, Known(data, wanted, is_last=is_last))

    def _put(self, place: Place, known: Known) -> None:
        """Put one in; what nobody asked for since twice MAX_KNOWN others came is forgotten."""
        if self._count >= MAX_KNOWN:
            self._count = 0
            self.generation += 1  # connections ask anew, and so what they use stays remembered
            for each in self._places.values():
                each.earlier, each.known = each.known, {}
        self._count += 1
        place.known[known.data] = known

    def find(self, place: Place, address: str, data: bytes) -> Repeat | None:
        """Return what these bytes come to from this address, None where the long way must tell."""
        known = place.known.get(data)
        if known is None:
            known = place.earlier.get(data)
            if known is None:
                return None
            self._put(place, known)
        machine = self._registry.at(place.listener, address, place.default_vm)
        if machine is None or self._is_closed:
            return None
        asked = self._registry.asked(machine)
        if asked.sighting is None:
            return None
        page = self._documents.page(machine.scope, known.wanted.version)
        if page is None:
            return None
        is_held = known.wanted.if_none_match.matches(page.incarnation)
        ending = page.unchanged if is_held else page.news
        if ending is None:
            reply = exchange.document_reply(known.wanted, page.incarnation, page.body)
            ending = writing.Ending(reply)
            if is_held:
                page.unchanged = ending
            else:
                page.news = ending
        return Repeat(known, asked, machine.scope, ending, self.generation)

    def answer(self, repeat: Repeat, now: float) -> bytes | None:
        """Do what a request does besides being answered, and return its answer.

        Args:
            repeat: As of the last change.
            now: Monotonic seconds, real ones.

        Returns:
            The answer's bytes; None, and nothing was done, where the long way must tell.
        """
        askings = self._askings
        if askings is not None and not askings.is_noted(repeat.scope):
            return None
        asked = repeat.asked
        if not self._limiter.allows(asked, now):
            return None
        writer = self._writer
        if now >= writer.until:
            writer.tick(now)
        known = repeat.known
        sighting = known.sighting
        if sighting is None or sighting[0] is not writer.second:
            sighting = known.sighting = (writer.second, known.wanted.version.name)
        asked.sighting = sighting
        return writer.put(repeat.status, repeat.ending)
