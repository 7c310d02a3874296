"""The settings of one address that guests ask at, and what is wrong with them."""

import ipaddress
from collections.abc import Iterator
from typing import Final

import msgspec

from forewarn.configuration import Port
from forewarn.maintenance import fleet
from forewarn.server.guest.proxies import MAX_NETWORKS, MAX_SECRETS, Network

MAX_PLACE: Final = 4096
"""The longest path of a file: the system's own limit."""


class Listener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One address that guests ask at."""

    address: str = "127.0.0.1"
    """An IP address of this machine. On a loopback address a guest may also name itself by the
    path `/vm/NAME/metadata/...`; on any other only its source address tells who asks."""
    port: Port = 8170
    """8170 because ports below 1024 want privileges; the real endpoint is at 80. 0 is any free
    one."""
    default_vm: str = ""
    """On a loopback address: the machine that a request without a name comes from. `""`: none."""
    name: str = ""
    """Whose machines are looked up here: those that the fleet places at a `listener` of this name.
    `""`: those that it places at none. Several listeners may have one name."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks, such as `192.0.2.7/32`, from which proxies ask for machines: each of their requests
    must be signed. By default there are none, and whoever sends a proxy's headers is refused."""
    proxy_secret_files: tuple[str, ...] = ()
    """Files that hold one secret each, any of which a trusted proxy may sign with: two while they
    are changed. Mode 0640 at most. Read at the start and again at SIGHUP."""
    proxy_without_header: bool = False
    """Whether a trusted proxy's requests are taken without `Metadata: true`, for those that drop
    it, as OpenStack's agent does. Off: the header keeps a guest's own servers from being made to
    ask for others."""


def networks(listener: Listener) -> tuple[Network, ...]:
    """Return its trusted networks.

    Raises:
        ValueError: One is no network.
    """
    return tuple(ipaddress.ip_network(text) for text in listener.trusted_proxies)


def mistakes(listener: Listener, where: str) -> Iterator[str]:
    """Yield what no type tells, the first mistake first.

    Args:
        listener: The settings, of their types.
        where: Their place, for messages: `guest.listener[0]`.
    """
    try:
        address = ipaddress.ip_address(listener.address)
    except ValueError:
        yield (
            f"at {where}.address: {listener.address!r} is no IP address: "
            "give one of this machine, such as '169.254.169.254'"
        )
        return
    if listener.default_vm and not address.is_loopback:
        yield (
            f"at {where}.default_vm: only a listener on a loopback address may have one: on "
            f"{listener.address} every stranger would be taken for {listener.default_vm}"
        )
    if listener.name and not fleet.LISTENER.fullmatch(listener.name):
        yield (
            f"at {where}.name: {listener.name!r} is no listener's name: give lower-case letters, "
            "digits, '.', '_' or '-', such as 'blue'"
        )
    yield from _mistakes_of_proxies(listener, where)


def _mistakes_of_proxies(listener: Listener, where: str) -> Iterator[str]:
    for text in listener.trusted_proxies:
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            yield f"at {where}.trusted_proxies: {error}: give a network such as '192.0.2.7/32'"
    if len(listener.trusted_proxies) > MAX_NETWORKS:
        yield f"at {where}.trusted_proxies: at most {MAX_NETWORKS} networks"
    if len(listener.proxy_secret_files) > MAX_SECRETS:
        yield f"at {where}.proxy_secret_files: at most {MAX_SECRETS} files"
    if any(not 0 < len(place) <= MAX_PLACE for place in listener.proxy_secret_files):
        yield f"at {where}.proxy_secret_files: each is the path of a file"
    if bool(listener.trusted_proxies) != bool(listener.proxy_secret_files):
        yield (
            f"at {where}: trusted_proxies and proxy_secret_files want each other: a proxy is "
            "trusted by its address, and as far as it signs"
        )
    if listener.proxy_without_header and not listener.trusted_proxies:
        yield f"at {where}.proxy_without_header: there are no trusted_proxies"
