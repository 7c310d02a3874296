"""The proxies that a listener trusts, and the secrets that they sign with."""

import ipaddress
from collections.abc import Iterable
from typing import Final, TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_NETWORKS: Final = 64
"""Networks of one listener: a proxy on each of a rack's hosts, one by one, and some to spare."""

MAX_SECRETS: Final = 4
"""Secrets of one listener: the new one and the old one while they are changed, for two kinds of
proxies. A signature is tried with each of them."""


class Proxies:
    """Trusted by their address, and then only as far as they sign.

    Args:
        networks: Where they are.
        without_header: Whether they are known to drop the guest's `Metadata: true`.
    """

    def __init__(self, networks: Iterable[Network], *, without_header: bool = False) -> None:
        self._networks = tuple(networks)
        self.without_header = without_header
        self.secrets: tuple[bytes, ...] = ()
        """Any of them is right; put in anew when they are changed, also under open connections."""

    def trusts(self, address: str) -> bool:
        """Tell whether a peer is one of them.

        Args:
            address: As `ipaddress` writes it, an IPv4 one not mapped into IPv6; a zone is no part
                of where a proxy is.
        """
        try:
            peer = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(peer in network for network in self._networks)
