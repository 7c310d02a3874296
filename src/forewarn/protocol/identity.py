"""Whom a proxy speaks for: the headers that it signs (protocol.md section 10).

    X-Instance-ID              the machine: its name or its vmId
    X-Instance-ID-Signature    hex HMAC-SHA256 of exactly that value, under a secret that both know

So OpenStack's metadata agent signs. The signature says neither when nor for which request it was
made: whoever has seen one may show it again, so it counts only from a trusted proxy's address.
"""

import hmac
from collections.abc import Sequence
from typing import Final

import msgspec

ID: Final = b"x-instance-id"
SIGNATURE: Final = b"x-instance-id-signature"
HEADERS: Final = frozenset((ID, SIGNATURE))


class Claim(msgspec.Struct, frozen=True):
    """What a proxy says of who asks; nothing is known yet of whether it may."""

    id: bytes
    """The value as it was sent, without the blanks around it: what was signed."""
    signature: bytes


def claim(said: Sequence[tuple[bytes, bytes]]) -> Claim | None:
    """Return what these headers claim; None unless each is there exactly once.

    Args:
        said: The headers of HEADERS that a request has, names in lower case.
    """
    values = dict(said)
    if len(said) != len(HEADERS) or len(values) != len(HEADERS):
        return None
    return Claim(values[ID].strip(), values[SIGNATURE].strip())


def sign(id_: bytes, secret: bytes) -> bytes:
    """Return the signature of an id."""
    return hmac.digest(secret, id_, "sha256").hex().encode("ascii")


def is_signed(said: Claim, secrets: Sequence[bytes]) -> bool:
    """Tell whether one of these secrets signed the claim.

    How long it takes tells nothing of how much of a signature was right, nor of which secret it
    was: each is tried, and compared in constant time.
    """
    shown = said.signature.lower()
    matches = [hmac.compare_digest(sign(said.id, secret), shown) for secret in secrets]
    return any(matches)
