"""Every limit and every time of a connection, by name, with its default and why."""

import msgspec

from forewarn.protocol import refusals


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection may use; each of these is a setting."""

    head_bytes: int = refusals.MAX_HEAD_BYTES
    """A request's first line and headers, blank lines before it counted (protocol.md section 9).
    Clients send under 1 KiB; 16 KiB is what other servers allow at most. More is answered 431."""

    body_bytes: int = refusals.MAX_BODY_BYTES
    """A request's body as it is after chunked coding (protocol.md section 9). 1,000 approvals, the
    most that one body may hold, are 60 KB. More is answered 413."""

    chunked_bytes: int = 128 * 1024
    """A chunked body as it is on the wire, with sizes, extensions and trailers: twice a body, so
    that nobody can send forever what counts as no body. More is answered 413."""

    connections: int = 10_000
    """Connections in all: 100,000 machines that poll by short connections have far fewer open at
    once, and 10,000 idle ones take under 50 MB. One more is told 503 and closed."""

    connections_per_address: int = 64
    """Connections from one address, so that one guest cannot take everybody's: three agents on
    one machine need three. Not counted on a loopback listener, where all share an address."""

    waiters: int = 9_000
    """Requests that wait for their document to change (protocol.md section 10); one more is
    answered at once, and its client polls. Below `connections`, so that waiters never keep out
    those who ask now."""

    messages_per_turn: int = 16
    """Pipelined requests answered in one turn, half a millisecond; of all connections that have
    some, one has a turn at a time."""

    write_buffer_bytes: int = 64 * 1024
    """Answers that the peer has not taken yet; above it nothing more is read from that peer."""

    linger_bytes: int = 256 * 1024
    """What is still read and thrown away after a last answer, so that the answer is not lost to a
    reset (RFC 9112 section 9.6)."""

    head_seconds: float = 5.0
    """From a head's first byte to its end, and from a new connection to its first byte."""

    body_seconds: float = 10.0
    """From a head's end to the end of its body, a client's wait for `100 Continue` included."""

    idle_seconds: float = 75.0
    """Between two requests: clients that poll once a minute keep their connection."""

    write_seconds: float = 30.0
    """For the peer to take answers once they pile up: no client in the field waits longer than
    24 s for an answer."""

    approval_seconds: float = 60.0
    """For the plane to answer an approval. Nobody knows then whether it was stored, so the
    connection is closed without an answer."""

    linger_seconds: float = 5.0
    """For the peer to close its side after the last answer."""

    sweep_seconds: float = 1.0
    """How often all connections are looked over for those whose time is up; every time above is
    kept to this exactness, late and never early."""
