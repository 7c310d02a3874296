"""The messages between the service and its relays: JSON over HTTP/1.1, one token a host.

    GET  /v1/relay/host        the HostDocument with its ETag, as soon as it is not the one of
                               If-None-Match; 304 after the wait, which the service chooses
    POST /v1/relay/approvals   GuestApproval; 200 once it is durable, else a RelayRefusal
    POST /v1/relay/sightings   a list of AgedSighting; 204
    POST /v1/relay/requests    ScopeRequests; 204 once it is durable
    POST /v1/relay/unknown     UnknownCaller; 204 if a machine that moves has this address, or 404

Both sides import this module, and a relay has neither a store nor a framework for HTTP, so it
imports none. A service understands relays of an earlier release, so it is upgraded first: a relay's
messages may lack fields, which have their defaults, and a relay ignores fields that it does not
know. So a new field needs a default, and none is ever given another meaning. Unknown fields of a
relay are a mistake, which the service names.
"""

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec

from forewarn.maintenance.model import Machine, Scope
from forewarn.protocol import versions
from forewarn.vocabulary import AgentStatus

T = TypeVar("T")

HOST_PATH: Final = "/v1/relay/host"
APPROVALS_PATH: Final = "/v1/relay/approvals"
SIGHTINGS_PATH: Final = "/v1/relay/sightings"
REQUESTS_PATH: Final = "/v1/relay/requests"
UNKNOWN_PATH: Final = "/v1/relay/unknown"

AT_ONCE: Final = "wait=0"
"""The query of HOST_PATH where the answer is to come at once: a relay asks so first on each
connection, to test it."""

STATE_HEADER: Final = "forewarn-relay"
"""The request header of HOST_PATH with a RelayState, as JSON in one line. Without it somebody only
looks, as `forewarn relay --check` does: the answer comes at once, and no relay was heard."""

TIME_HEADER: Final = b"forewarn-time"
"""The header of an answer with the service's time: a host's clock may be wrong."""

BUSY_WAIT_SECONDS: Final = 5.0
"""The wait of a request for the host while an operation there is pending, or a drain reboots it: a
relay that froze, or is back, is noticed so soon."""

IDLE_WAIT_SECONDS: Final = 45.0
"""The wait of that request otherwise: load balancers end a request after 50 or 60 s."""

MAX_SIGHTINGS: Final = 1000
"""The most machines in one request of sightings: with the longest reasons it has 600 KB."""

MAX_SCOPES: Final = 2000
"""The most scopes in one request of scopes that were asked for."""

MAX_EVENT_IDS: Final = 1000
"""The most events of one approval (protocol.md section 5)."""

MAX_HOST_BYTES: Final = 64 * 1024 * 1024
"""The largest HostDocument that a relay reads: one of ten thousand machines has 10 MB."""

MAX_ETAG: Final = 200
"""Characters of an ETag: the service's own have under 130."""

RelayText = Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]
"""A relay's text: without the character that no store accepts. One such text would keep the reports
of all relays from being saved."""

RelayLine = Annotated[str, msgspec.Meta(pattern=r"\A[^\0-\x1f\x7f-\x9f\u2028-\u202e]*\Z")]
"""A relay's text that operators read: without characters that their terminals or viewers obey."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A relay's number: as large as the store accepts."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=100 * 366 * 86_400)]
"""An age or a length of a relay's: a century at most, for dates begin with year 1."""


class PublishedEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event for guests, and its place in the document."""

    published: int
    """The scope's incarnation that first showed it."""
    event: versions.ScheduledEvent


class ScopeDocument(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A scope with its whole document: to apply it twice changes nothing."""

    scope: Scope
    events: tuple[PublishedEvent, ...] = ()


class GuestRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The service's settings for answers to guests."""

    post_without_header: str = "preview"
    rate_per_second: float = 50.0
    rate_burst: int = 100
    enablement: str = "always"
    disable_after_seconds: float = 86400.0
    first_response_delay_seconds: float = 0.0


class HostDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A relay's knowledge of its host: a machine or scope that is not in it is gone."""

    host: str
    machines: tuple[Machine, ...] = ()
    scopes: tuple[ScopeDocument, ...] = ()
    """The scopes of `machines`, all of them."""
    rules: GuestRules = GuestRules()
    awaited: tuple[str, ...] = ()
    """Keys of machines that have to ask again before their operation is over: requests of theirs
    that wait are ended."""


class EncodedHost(HostDocument, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A HostDocument whose scopes are encoded: hosts that share a scope share its bytes."""

    scopes: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment] # each is a ScopeDocument


class Sent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A value that relays send."""


class RelayState(Sent, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A relay's report of itself, with each request for its host. Ages: its clock may be wrong."""

    version: RelayLine = ""
    age_seconds: Seconds = 0.0
    """The time since its start."""
    machines: Count = 0
    stalled_seconds: Seconds = 0.0
    """The time by which the notices of its host must move later: for so long its guests got no
    answer, by the service's own rule (`notice.end_gap`), since its last request."""


class GuestApproval(Sent, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A machine's approval (protocol.md section 5)."""

    machine: RelayText
    """Its key."""
    address: RelayLine
    event_ids: Annotated[tuple[RelayText, ...], msgspec.Meta(max_length=MAX_EVENT_IDS)]
    version: RelayLine = ""
    """The api-version of its latest request. An operation that starts by this approval waits for
    the machine to ask again, also where no AgedSighting has reported it yet; `""` for an unknown
    one."""
    age_seconds: Seconds = 0.0
    """The age of that request."""


class RelayRefusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The body of every answer of 400 and above.

    400 `not-found` with the event that was never published; 400 `invalid`; 401 `unauthorized`: no
    valid token; 403 `not-eligible`: the machine is not on this host; 404 `not-found`; 503
    `unavailable`: nothing was changed; 503 `unknown-outcome`: nobody knows whether it was.
    """

    code: str
    """An ErrorCode."""
    message: str = ""
    """For people."""
    event_id: str = ""


class AgedSighting(Sent, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The latest requests of a machine."""

    machine: RelayText
    """Its key."""
    age_seconds: Seconds = 0.0
    version: RelayLine
    """The api-version of that request."""
    agent: AgentStatus | None = None
    reason: RelayLine = ""


class ScopeRequests(Sent, frozen=True, kw_only=True, gc=False):
    """Scopes (keys) whose machines asked for their events (protocol.md section 8)."""

    scopes: Annotated[tuple[RelayText, ...], msgspec.Meta(max_length=MAX_SCOPES)]


class UnknownCaller(Sent, frozen=True, kw_only=True, gc=False):
    """An address that no machine of the host has: it may be one that has just moved there."""

    listener: RelayText
    address: RelayText


class Unreadable(Exception):  # noqa: N818 - the sender is at fault
    """Bytes that hold no value of the expected type; the message says why, for people."""


def reader(decoder: msgspec.json.Decoder[T]) -> Callable[[bytes], T]:
    """Return a function that decodes as this decoder does, and raises Unreadable for its errors."""

    def read(data: bytes) -> T:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(str(error)) from None

    return read


encode = msgspec.json.Encoder().encode
"""Encode any of these, or a list of AgedSighting."""

decode_host = reader(msgspec.json.Decoder(HostDocument))
decode_state = reader(msgspec.json.Decoder(RelayState))
decode_approval = reader(msgspec.json.Decoder(GuestApproval))
decode_refusal = reader(msgspec.json.Decoder(RelayRefusal))
decode_sightings: Callable[[bytes], tuple[AgedSighting, ...]] = reader(
    msgspec.json.Decoder(
        Annotated[tuple[AgedSighting, ...], msgspec.Meta(max_length=MAX_SIGHTINGS)]
    )
)
decode_requests = reader(msgspec.json.Decoder(ScopeRequests))
decode_unknown = reader(msgspec.json.Decoder(UnknownCaller))
