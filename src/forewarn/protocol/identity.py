"""The signed headers by which a proxy names the machine it speaks for (protocol.md section 10).

    X-Instance-ID              the machine: its name or its vmId
    X-Instance-ID-Signature    hex HMAC-SHA256 of exactly that value, under a secret that both know

OpenStack's metadata agent signs this way. The signature covers neither time nor request: whoever
has seen one can replay it, so it counts only from a trusted proxy's address.
"""

import hmac
from collections.abc import Sequence
from typing import Final

import msgspec

ID: Final = b"x-instance-id"
SIGNATURE: Final = b"x-instance-id-signature"
HEADERS: Final = frozenset((ID, SIGNATURE))


class Claim(msgspec.Struct, frozen=True):
    """What a proxy says about who asks, not verified yet."""

    id: bytes
    """The value as sent, without blanks around it: what was signed."""
    signature: bytes


def claim(said: Sequence[tuple[bytes, bytes]]) -> Claim | None:
    """Return what a request's headers of HEADERS claim; None unless each is given exactly once."""
    values = dict(said)
    if len(said) != len(HEADERS) or len(values) != len(HEADERS):
        return None
    return Claim(values[ID].strip(), values[SIGNATURE].strip())


def sign(id_: bytes, secret: bytes) -> bytes:
    """Return the signature of an id."""
    return hmac.digest(secret, id_, "sha256").hex().encode("ascii")


def is_signed(said: Claim, secrets: Sequence[bytes]) -> bool:
    """Tell whether one of these secrets signed the claim, in constant time."""
    shown = said.signature.lower()
    matches = [hmac.compare_digest(sign(said.id, secret), shown) for secret in secrets]
    return any(matches)
