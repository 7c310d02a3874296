"""A small world to ask: one scope, its machines, what it published, and what was asked of it."""

from dataclasses import dataclass, field

from forewarn.protocol import codec, exchange, identity, instance
from forewarn.protocol.document import Document
from forewarn.protocol.exchange import Peer, Reply, Request, Rules, Told
from forewarn.protocol.identity import Claim
from forewarn.protocol.instance import Tree
from forewarn.protocol.versions import Version
from protocol import cases

ADDRESS = "10.0.0.10"
LOOPBACK = Peer(address="127.0.0.1", vm_paths=True)
GUEST = Peer(address=ADDRESS)
STRANGER = Peer(address="10.0.0.99")
PROXY = Peer(address="192.0.2.7", trusted_proxy=True)
SECRET = b"a secret of sixteen bytes and more"
HEADER = ((b"Metadata", b"true"),)
EVENTS = b"/metadata/scheduledevents?api-version=2020-07-01"
EVENT_ID = "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"


@dataclass
class World:
    """Answers as the service does, for the one machine web-0 at ADDRESS."""

    peer: Peer = GUEST
    document_shown: Document = cases.SECTION_4
    over_the_rate_for_seconds: int = 0
    store_is_away: bool = False
    approved: list[tuple[str, ...]] = field(default_factory=list)
    counted: int = 0

    def caller(self, machine: Told) -> str | None:
        if isinstance(machine, Claim):
            known = identity.is_signed(machine, [SECRET]) and machine.id == b"web-0"
            return "web-0" if known else None
        if machine is not None:
            return machine.lower() if machine.lower() in {"web-0", "web-1"} else None
        return "web-0" if self.peer.address == ADDRESS else None

    def retry_after_seconds(self, caller: str) -> int:
        assert caller in {"web-0", "web-1"}
        self.counted += 1
        return self.over_the_rate_for_seconds

    def document(self, caller: str, version: Version) -> tuple[int, bytes]:
        assert caller in {"web-0", "web-1"}
        body = codec.encode_document(self.document_shown, version)
        return self.document_shown.incarnation, body

    def tree(self, caller: str) -> Tree:
        assert caller in {"web-0", "web-1"}
        return instance.tree(cases.WHOLE_INSTANCE)

    def approve(self, caller: str, event_ids: tuple[str, ...]) -> Reply:
        assert caller in {"web-0", "web-1"}
        if self.store_is_away:
            return exchange.unavailable(5)
        published = {event.event_id for event in self.document_shown.events}
        for event_id in event_ids:
            if event_id not in published:
                return exchange.unknown_event(event_id)
        self.approved.append(event_ids)
        return exchange.approved()


def ask(request: Request, world: World | None = None, rules: Rules | None = None) -> Reply:
    world = world or World()
    return exchange.respond(request, world.peer, rules or Rules(), world)


def get(
    target: bytes = EVENTS,
    *headers: tuple[bytes, bytes],
    world: World | None = None,
) -> Reply:
    """GET with the header that every request needs."""
    return ask(Request(b"GET", target, HEADER + headers), world)


def post(
    body: bytes,
    *headers: tuple[bytes, bytes],
    target: bytes = EVENTS,
    world: World | None = None,
) -> Reply:
    """POST with the header that every request needs."""
    return ask(Request(b"POST", target, HEADER + headers, body), world)


def signed(id_: bytes, secret: bytes = SECRET) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers by which a proxy speaks for a machine."""
    signature = identity.sign(id_, secret)
    return ((b"X-Instance-ID", id_), (b"X-Instance-ID-Signature", signature))


def approval(*event_ids: str) -> bytes:
    return codec.encode_start_requests(event_ids)


def as_golden(reply: Reply) -> bytes:
    """Write a reply the way the files in golden/answers and golden/errors are written."""
    head = [b"%d" % reply.status, *(name + b": " + value for name, value in reply.headers)]
    return b"\n".join([*head, b"", reply.body])
