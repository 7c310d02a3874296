"""A small world to ask: one scope, its machines, what it published, and what was asked of it.

Requests are answered by the endpoint that the service itself answers them with.
"""

import asyncio
import functools
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import msgspec

from forewarn.maintenance.model import Changes, Operation
from forewarn.protocol import codec, exchange
from forewarn.protocol.exchange import Peer, Rules
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.protocol.versions import EventsDocument
from forewarn.server.guest.endpoint import LongPoll, PendingApproval
from forewarn.server.guest.limits import UNLIMITED, Rate
from forewarn.server.guest.machines import Proxies, Source
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import EventStatus, ScopeKind
from guest import room
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
NEVER = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of an event that has started, which nobody is shown."""


class World:
    """One scope with the machines web-0, which asks from ADDRESS, and web-1.

    Args:
        peer: Where requests come from.
        document_shown: What the scope shows.
        over_the_rate_for_seconds: How long web-0 has to stay away from now on; 0 for not at all.
        store_is_away: Whether no approval can be stored.
    """

    def __init__(
        self,
        *,
        peer: Peer = GUEST,
        document_shown: EventsDocument = cases.SECTION_4,
        over_the_rate_for_seconds: int = 0,
        store_is_away: bool = False,
    ) -> None:
        self.peer = peer
        limited = (
            Rate(per_second=1 / over_the_rate_for_seconds) if over_the_rate_for_seconds else None
        )
        self.room = room.Room(loop(), rate=limited or UNLIMITED)
        kind = ScopeKind.CLOUD_SERVICE if document_shown.cloud_service else ScopeKind.SCALE_SET
        scope = room.scope("web", kind=kind, incarnation=document_shown.incarnation)
        shown = tuple(operations_of(document_shown))
        over = room.operation(room.event(), status=EventStatus.CANCELED)
        machines = (room.machine("web-0", ADDRESS, scope="web"), room.machine("web-1", scope="web"))
        self.room.learn(
            Changes(
                scopes=(scope,),
                machines=machines,
                operations=(over, *shown),
                removed_machines=("bastion",),
            )
        )
        published = {event.event_id for event in document_shown.events}
        self.room.approvals.published = {"web": published}
        if store_is_away:
            self.room.approvals.error = StoreUnavailable("the store is away")
        if over_the_rate_for_seconds:
            assert self.ask(HttpRequest(b"GET", EVENTS, HEADER), peer=GUEST).status == 200

    @property
    def approved(self) -> list[tuple[str, ...]]:
        """The ids of each approval."""
        return [event_ids for _, event_ids, _, _ in self.room.approvals.book]

    def ask(
        self, request: HttpRequest, rules: Rules | None = None, peer: Peer | None = None
    ) -> Reply:
        """Return the endpoint's reply; to a request that may wait, the one that it has now."""
        source = source_of(peer or self.peer)
        endpoint = self.room.endpoint
        if rules is not None:
            endpoint.rules = rules
        admitted = endpoint.admit(request, source)
        if isinstance(admitted, Reply):
            return admitted
        outcome: Any = endpoint.answer(admitted, request.body)
        if isinstance(outcome, PendingApproval):
            submitted = endpoint.approve(outcome)
            return (
                endpoint.settle(submitted, outcome) if isinstance(submitted, Future) else submitted
            )
        return endpoint.refuse_to_wait(outcome) if isinstance(outcome, LongPoll) else outcome


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """Return a loop that nothing ever runs on: the endpoint answers at once."""
    made = asyncio.new_event_loop()
    made.close()
    return made


def source_of(peer: Peer) -> Source:
    proxies = Proxies(())
    proxies.secrets = (SECRET,)
    return Source(**msgspec.structs.asdict(peer), proxies=proxies if peer.trusted_proxy else None)


def operations_of(document: EventsDocument) -> list[Operation]:
    """Return operations that show a document's events, in their order."""
    return [
        room.operation(
            room.event(event.event_id, machines=event.resources, published=number),
            id=f"{number}.1",
            event_type=event.event_type,
            source=event.source,
            description=event.description,
            duration_seconds=event.duration_seconds,
            status=event.status,
            not_before=event.not_before or NEVER,
        )
        for number, event in enumerate(document.events, 1)
    ]


def signed(id_: bytes, secret: bytes = SECRET) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers by which a proxy speaks for a machine."""
    signature = exchange.sign(id_, secret)
    return ((b"X-Instance-ID", id_), (b"X-Instance-ID-Signature", signature))


def approval(*event_ids: str) -> bytes:
    return codec.encode_start_requests(event_ids)


def as_golden(reply: Reply) -> bytes:
    """Write a reply the way the files in golden/answers and golden/errors are written."""
    head = [b"%d" % reply.status, *(name + b": " + value for name, value in reply.headers)]
    return b"\n".join([*head, b"", reply.body])
