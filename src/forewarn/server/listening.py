"""The settings of one address that guests connect to."""

import ipaddress
from typing import Final

import msgspec

from forewarn.maintenance import fleet
from forewarn.server.guest.proxies import MAX_NETWORKS, MAX_SECRETS, Network
from forewarn.settings import FieldError, Port

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

    def __post_init__(self) -> None:
        """Refuse what no type expresses."""
        try:
            address = ipaddress.ip_address(self.address)
        except ValueError:
            message = f"invalid IP address {self.address!r}: expected one such as '169.254.169.254'"
            raise FieldError("address", message) from None
        if self.default_vm and not address.is_loopback:
            message = (
                f"not allowed on {self.address}, where any machine may connect: only a listener "
                "on a loopback address may have one"
            )
            raise FieldError("default_vm", message)
        if self.name and not fleet.LISTENER.fullmatch(self.name):
            message = (
                f"invalid name {self.name!r}: expected lower-case letters, digits, '.', '_' or "
                "'-', such as 'blue'"
            )
            raise FieldError("name", message)
        self._check_proxies()

    def _check_proxies(self) -> None:
        for text in self.trusted_proxies:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                message = f"{error}; expected a network such as '192.0.2.7/32'"
                raise FieldError("trusted_proxies", message) from None
        if len(self.trusted_proxies) > MAX_NETWORKS:
            raise FieldError("trusted_proxies", f"expected at most {MAX_NETWORKS} networks")
        if len(self.proxy_secret_files) > MAX_SECRETS:
            raise FieldError("proxy_secret_files", f"expected at most {MAX_SECRETS} files")
        if any(not 0 < len(place) <= MAX_PLACE for place in self.proxy_secret_files):
            raise FieldError("proxy_secret_files", "expected paths of files")
        if bool(self.trusted_proxies) != bool(self.proxy_secret_files):
            missing = "proxy_secret_files" if self.trusted_proxies else "trusted_proxies"
            message = "missing: a trusted proxy needs its address and a secret that it signs with"
            raise FieldError(missing, message)
        if self.proxy_without_header and not self.trusted_proxies:
            raise FieldError("proxy_without_header", "needs trusted_proxies")


def networks(listener: Listener) -> tuple[Network, ...]:
    """Return its trusted networks.

    Raises:
        ValueError: One is no network.
    """
    return tuple(ipaddress.ip_network(text) for text in listener.trusted_proxies)
