"""What holds whatever comes: any bytes get an answer, and a document survives its journey."""

import json
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from forewarn.protocol import codec, exchange
from forewarn.protocol.codec import Listed, Listing, Malformed
from forewarn.protocol.exchange import Peer, Rules
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.protocol.versions import VERSIONS, EventsDocument, ScheduledEvent, Version
from forewarn.vocabulary import EventSource, EventStatus, EventType
from protocol import world
from protocol.world import HEADER, World

SOME_VERSION = st.sampled_from(VERSIONS)
NAMES = st.text("abcXYZ019.-_", min_size=1, max_size=12).filter(lambda name: name[0] != "_")
MOMENTS = st.integers(-2_208_988_800, 253_402_214_400).map(  # the years 1900 to 9999
    lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)


@st.composite
def events(draw: st.DrawFn) -> ScheduledEvent:
    status = draw(st.sampled_from([EventStatus.SCHEDULED, EventStatus.STARTED]))
    return ScheduledEvent(
        event_id=str(draw(st.uuids())).upper(),
        status=status,
        event_type=draw(st.sampled_from(EventType)),
        resources=tuple(draw(st.lists(NAMES, min_size=1, max_size=4))),
        not_before=draw(MOMENTS) if status is EventStatus.SCHEDULED else None,
        description=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=30)),
        source=draw(st.sampled_from(EventSource)),
        duration_seconds=draw(st.integers(-1, 2**31)),
    )


DOCUMENTS = st.builds(
    EventsDocument,
    incarnation=st.integers(0, 2**53),
    events=st.lists(events(), max_size=5, unique_by=lambda event: event.event_id).map(tuple),
    cloud_service=st.booleans(),
)


def as_shown(document: EventsDocument, version: Version) -> Listing:
    """Return what the version can show of it, and nothing more."""
    unknown = {"description": None, "source": None, "duration_seconds": None}
    forgotten = {name: value for name, value in unknown.items() if name not in version.fields}
    prefix = "_" if version.name == "2017-03-01" and not document.cloud_service else ""
    shown = (
        msgspec.structs.asdict(event)
        | {"resource_type": "VirtualMachine"}
        | {"resources": tuple(prefix + name for name in event.resources)}
        | forgotten
        for event in document.events
        if event.event_type in version.event_types
    )
    return Listing(
        incarnation=document.incarnation, events=tuple(Listed(**facts) for facts in shown)
    )


@given(DOCUMENTS, SOME_VERSION)
def test_what_a_version_shows_is_what_clients_read(
    document: EventsDocument, version: Version
) -> None:
    body = codec.encode_document(document, version)
    assert codec.decode_listing(body) == as_shown(document, version)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
def test_approvals_survive_encode_and_decode_but_for_case_and_doubles(ids: list[str]) -> None:
    read = codec.decode_start_requests(codec.encode_start_requests(ids))
    ascii_upper = [each.encode().upper().decode() for each in ids]
    assert read == tuple(dict.fromkeys(ascii_upper))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["StartRequests", "EventId", "DocumentIncarnation", "x"]), below
        )
    ),
    max_leaves=8,
)
BODIES = (
    st.binary(max_size=300)
    | JSON_VALUES.map(lambda value: json.dumps(value).encode())
    | JSON_VALUES.map(lambda value: json.dumps({"StartRequests": [value]}).encode())
    | st.just(world.approval(world.EVENT_ID))
)


@given(BODIES)
def test_any_body_is_an_approval_or_is_refused(body: bytes) -> None:
    try:
        ids = codec.decode_start_requests(body)
    except Malformed:
        reply = exchange.start_requests(body)
        assert isinstance(reply, Reply)
        assert reply.status == 400
        assert json.loads(reply.body)["error"]
    else:
        assert exchange.start_requests(body) == ids
        assert len(set(ids)) == len(ids)


WORDS = (
    b"/ metadata scheduledevents instance versions latest vm %2F compute name network interface 0 "
    b"? & = api-version 2020-07-01 2017-03-01 2021-02-01 format text % :// http"
).split()
PIECES = st.lists(st.sampled_from(WORDS) | st.binary(max_size=4), max_size=16).map(b"".join)
REAL = st.sampled_from(
    [
        world.EVENTS,
        b"/metadata/scheduledevents?api-version=2017-03-01",
        b"/metadata/instance?api-version=2021-02-01",
        b"/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        b"/metadata/versions",
        b"/vm/web-1/metadata/versions",
    ]
)
METHODS = st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT"]) | st.binary(max_size=8)
HEADERS = st.lists(
    st.sampled_from([HEADER[0], (b"If-None-Match", b'W/"2", *'), (b"X-Forwarded-For", b"1")])
    | st.tuples(st.binary(max_size=16), st.binary(max_size=16))
    | st.tuples(st.just(b"If-None-Match"), st.binary(max_size=32)),
    max_size=5,
).map(tuple)
PEERS = st.builds(
    Peer,
    address=st.sampled_from([world.ADDRESS, "10.0.0.99", ""]),
    trusted_proxy=st.booleans(),
    vm_paths=st.booleans(),
)


@given(
    st.builds(HttpRequest, METHODS, REAL | PIECES | st.binary(max_size=60), HEADERS, BODIES),
    PEERS,
    st.builds(Rules, post_without_header=st.sampled_from(["preview", "always", "never"])),
    st.integers(0, 1),
)
def test_any_request_gets_a_reply_and_never_an_exception(
    request: HttpRequest, peer: Peer, rules: Rules, over: int
) -> None:
    there = World(peer=peer, over_the_rate_for_seconds=over)
    reply = there.ask(request, rules)
    assert reply.status in exchange.REASONS
    headers = dict(reply.headers)
    assert len(headers) == len(reply.headers)
    if reply.status >= 400:
        assert json.loads(reply.body)["error"]
        assert headers[b"Content-Type"] == b"application/json; charset=utf-8"
        assert there.approved == []
    if reply.status == 304 or (reply.status == 200 and request.method == b"POST"):
        assert reply.body == b""
    for name, value in reply.headers:
        assert not {b"\r", b"\n"} & {bytes([byte]) for byte in name + value}
    assert there.ask(request, rules) == reply
