"""Refusals, limits and lists of the wire, in one place: one line changes with new evidence.

Standing, as in docs/protocol.md: `D` documented by the protocol's owner, `C` captured from the real
service, `K` demanded by clients in the field, `O` open in all of these, and our choice.

The content of each version is in `versions`, and the order of the rules is the order of the lines
in `exchange.judge`. The descriptions of events are in `maintenance.planner`.
"""

from typing import Final, Literal

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    """One refusal (protocol.md section 9)."""

    status: int
    text: str
    """The error's text, with the facts of the case in braces."""
    standing: Literal["D", "C", "K", "O"] = "O"
    code: str = ""
    """The code of an OAuth error (RFC 6749) that the text describes; `""` for other errors."""
    is_plain: bool = False
    """True if the body is the text alone instead of JSON."""


MAX_START_REQUESTS: Final = 1000
"""Entries of one approval [O]: far more than any scope has live events."""

MAX_BODY_BYTES: Final = 64 * 1024
"""A body's limit by default [O]; 1,000 approvals fit."""

MAX_HEAD_BYTES: Final = 16 * 1024
"""A head's limit by default [O], the usual one of servers."""

MAX_HEADERS: Final = 100
"""Headers of one request [O], the usual limit of servers; clients send ten."""

MAX_CHUNKS: Final = 1000
"""Chunks and trailers of one body [O]: client libraries send some kilobytes in each."""

NEWEST_NAMED: Final = 3
"""The number of newest versions that an error names [C]."""

NO_HEADER: Final = Refusal(400, "Bad request: . Required metadata header not specified", "C")
NO_IDENTITY_HEADER: Final = Refusal(
    400, "Required metadata header not specified", "C", code="invalid_request"
)
NO_IDENTITY: Final = Refusal(400, "Identity not found", "C", code="invalid_request")
"""A machine without an identity at Azure. Azure's libraries go on to their next credential at once;
after a 404 they would ask for 17 to 24 s."""
VERSION: Final = Refusal(
    400,
    "Bad request. api-version is invalid or was not specified in the request. "
    "For more information refer to aka.ms/azureimds",
    "C",
)
FORWARDED: Final = Refusal(
    400, "Bad request. X-Forwarded-For is not accepted: ask the endpoint directly, without a proxy"
)
NO_TRUSTED_PROXY: Final = Refusal(
    400,
    "Bad request. X-Instance-ID is not accepted from here: ask the endpoint directly, without a "
    "proxy",
)
"""Identity headers of a peer that is not a trusted proxy are refused, signed or not [O]. Otherwise
a proxy that is not configured would get the answers for the machine at its own address."""
WEB_PAGE: Final = Refusal(
    403,
    "Forbidden. Web pages may not ask: send no Origin header, and an IP address or localhost as "
    "the Host",
)
"""On a loopback listener, where anybody may name any machine, a page from elsewhere must not ask
through the user's browser [O]. Such a page sends its Origin or, by DNS rebinding, its own name as
the Host."""
UNSIGNED: Final = Refusal(
    400,
    "Bad request. A trusted proxy says who asks by X-Instance-ID and X-Instance-ID-Signature: "
    "expected each of them once",
)
"""Behind a trusted proxy nothing else tells who asks, neither address nor path [O]."""
DOUBLED_PARAMETER: Final = Refusal(
    400, "Bad request. Query parameter '{name}' is given more than once: give it once"
)
FORMAT: Final = Refusal(400, "Bad request. format '{format}' is not served: ask for json or text")
LEAF_WITHOUT_TEXT: Final = Refusal(
    400, "Bad request. {path} is a single value: ask for it with format=text"
)
BODY: Final = Refusal(
    400,
    "Bad request. The body {wrong}: expected a JSON object whose StartRequests is a list of "
    "at most {limit} objects, each with a string EventId. Nothing was approved",
)
UNKNOWN_EVENT: Final = Refusal(
    400,
    "Bad request. Event '{event_id}' was never published to this machine: "
    "send EventIds of its own document. Nothing was approved",
)
MALFORMED: Final = Refusal(400, "Bad request. Not HTTP/1.1 as expected: {what}")
UNKNOWN_CALLER: Final = Refusal(
    403,
    "Forbidden. No registered machine has the address {address}: "
    "register the machine with this address",
)
UNKNOWN_NAME: Final = Refusal(
    403,
    "Forbidden. {address} asked as '{machine}', which is not a registered machine: "
    "ask as one that is registered",
)
UNKNOWN_INSTANCE: Final = Refusal(
    403,
    "Forbidden. X-Instance-ID and X-Instance-ID-Signature do not name a registered machine: "
    "the service's log says why",
)
NOT_FOUND: Final = Refusal(404, "Not found", "C")
NO_LOAD_BALANCER: Final = Refusal(
    404,
    "No load balancer metadata is found. Please check if your VM is using any non-basic SKU "
    "load balancer and retry later.",
    "C",
)
NO_LOAD_BALANCER_PATH: Final = Refusal(
    404, 'API is not found: Path = "{path}", Method = "{method}"', "D"
)
METHOD: Final = Refusal(405, "Method not allowed")
LOAD_BALANCER_METHOD: Final = Refusal(
    405, 'Http method is not allowed: Path = "{path}", Method = "{method}"', "D"
)
TOO_SLOW: Final = Refusal(408, "Request timeout. The request did not arrive in time: send it whole")
BODY_TOO_LARGE: Final = Refusal(
    413,
    "Content too large. A body may have {limit} bytes at most: "
    "send fewer EventIds at once. Nothing was approved",
)
TOO_MANY_REQUESTS: Final = Refusal(429, "Too many requests", "D", is_plain=True)
HEAD_TOO_LARGE: Final = Refusal(
    431, "Request header fields too large. A request's head may have {limit} bytes at most"
)
TOO_MANY_HEADERS: Final = Refusal(
    431, "Request header fields too large. A request may have {limit} headers at most"
)
TOO_MANY_CHUNKS: Final = Refusal(
    413,
    "Content too large. A body may have {limit} chunks at most: send larger ones. "
    "Nothing was approved",
)
EXPECTATION: Final = Refusal(417, "Expectation failed. The only supported one is 100-continue")
CODING: Final = Refusal(501, "Not implemented. The only supported Transfer-Encoding is chunked")
HTTP_VERSION: Final = Refusal(
    505, "HTTP version {version} is not supported: use HTTP/1.1 or HTTP/1.0"
)
CONNECTIONS: Final = Refusal(
    503, "Service unavailable. {whose} has {limit} connections open: close some"
)
STRANGERS: Final = Refusal(
    503, "Service unavailable. Unregistered addresses have too many connections together"
)
INTERNAL: Final = Refusal(
    500, "Internal error. This is a defect of the service; its log has the details"
)
UNAVAILABLE: Final = Refusal(
    503,
    "Service unavailable. The approval could not be stored: send it again. Nothing was approved",
)
UNKNOWN_OUTCOME: Final = Refusal(
    503, "Service unavailable. Nobody knows yet whether the approval was stored: send it again"
)

REFUSALS: Final[dict[str, Refusal]] = {
    name: value for name, value in globals().items() if isinstance(value, Refusal)
}
"""Every refusal by its name above."""
