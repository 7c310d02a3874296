"""A request judged: a Request value in, a Reply value out (protocol.md sections 3 and 9).

The values of an exchange, from what the listener read to what it writes back.
"""

from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from forewarn.protocol.instance import Tree
from forewarn.protocol.versions import Version
from forewarn.version import __version__

SERVER: Final = f"Forewarn/{__version__} IMDS".encode()
"""The Server header: clients look for `IMDS` in it (protocol.md section 9)."""

REASONS: Final[dict[int, bytes]] = {
    200: b"OK",
    304: b"Not Modified",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
"""The reason phrase of every status that a Reply can have."""


class Request(msgspec.Struct, frozen=True):
    """A request as it was read, its body whole."""

    method: bytes
    target: bytes
    """As on the wire: path and query, or a whole URL; any bytes at all."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Names in any case, values with or without the blanks around them."""
    body: bytes = b""


class Reply(msgspec.Struct, frozen=True):
    """An answer with its own headers only.

    The shell adds Server, Date, x-ms-request-id, Content-Length and Connection; and it leaves the
    body away where HTTP forbids one: in the answer to a HEAD, and in a 304.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings decide about requests."""

    preview_post_without_header: bool = True
    """Whether a POST at 2017-03-01 is taken without `Metadata: true` (section 3, rule 1)."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """What the listener says of a connection."""

    address: str = ""
    """The source address, for the error that names it."""
    trusted_proxy: bool = False
    """Whether X-Forwarded-For is allowed: the peer is a configured proxy."""
    vm_paths: bool = False
    """Whether `/vm/NAME/metadata/...` is served: loopback listeners only (section 10)."""


class IfNoneMatch(msgspec.Struct, frozen=True):
    """The entity tags that a client holds already."""

    tags: tuple[bytes, ...] = ()
    """Without quotes and without the mark of weakness."""
    anything: bool = False
    """Whether it said `*`, which every document matches."""

    def matches(self, incarnation: int) -> bool:
        """Tell whether the client holds the document of this incarnation."""
        return self.anything or b"%d" % incarnation in self.tags


class DocumentWanted(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/scheduledevents."""

    version: Version
    if_none_match: IfNoneMatch = IfNoneMatch()
    machine: str | None = None
    """The name in a `/vm/NAME` prefix, as written; None where there is none."""


class ApprovalWanted(msgspec.Struct, frozen=True, kw_only=True):
    """POST /metadata/scheduledevents."""

    version: Version
    machine: str | None = None
    """The name in a `/vm/NAME` prefix, as written; None where there is none."""


class InstanceWanted(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/instance, the whole or a part of it."""

    path: tuple[str, ...] = ()
    format: Literal["json", "text"] = "json"
    machine: str | None = None
    """The name in a `/vm/NAME` prefix, as written; None where there is none."""


class VersionsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """GET /metadata/versions."""

    machine: str | None = None
    """The name in a `/vm/NAME` prefix, as written; None where there is none."""


Wanted: TypeAlias = DocumentWanted | ApprovalWanted | InstanceWanted | VersionsWanted
"""A request in which nothing is wrong so far: what is left is the caller, the rate, the body."""


class Knowledge(Protocol):
    """What a whole exchange asks of the world, in the order of its questions."""

    def caller(self, machine: str | None) -> str | None:
        """Return the registered machine that asks, None if there is none.

        Args:
            machine: The name in a `/vm/NAME` prefix; None where the connection must tell.
        """
        ...

    def retry_after_seconds(self, caller: str) -> int:
        """Count this request; return 0 within the rate, else the seconds to stay away."""
        ...

    def document(self, caller: str, version: Version) -> tuple[int, bytes]:
        """Return the incarnation and the rendered document of the caller's scope."""
        ...

    def tree(self, caller: str) -> Tree:
        """Return the caller's instance tree."""
        ...

    def approve(self, caller: str, event_ids: tuple[str, ...]) -> Reply:
        """Approve all or nothing: `approved()`, `unknown_event(...)` or `unavailable(...)`."""
        ...
