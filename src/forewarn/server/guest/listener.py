"""The addresses that guests ask at: their settings and the sockets.

The kernel queues connections in their order and drops what comes while its queue is full. More than
`Limits.connections` that come again at once fill it, however little a refusal costs: what limits
them is a firewall in front of the service (docs/security.md).

The command line reads the settings too, so nothing heavy is imported here.
"""

import contextlib
import functools
import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from forewarn import clock
from forewarn.maintenance import fleet_file, model
from forewarn.server import sockets
from forewarn.server.guest import machines
from forewarn.settings import FieldError, FileName, Port

if TYPE_CHECKING:
    import asyncio

    from forewarn.server.guest.connections import Connections

BACKLOG: Final = 4096
"""Connections that wait to be accepted, the most that Linux allows by default. Where it is full, a
client comes again a second later; 1,280 attackers who reconnect filled one of 1,024."""

ACCEPTS: Final = 256
"""Connections of a listener that are accepted in one round of the loop: the kernel's queue is first
in, first out, and who connects would wait behind a crowd that connects again and again."""

ACCEPT_SECONDS: Final = 0.005
"""After this no further one is accepted in the round: those who are served wait meanwhile."""

PAUSE_SECONDS: Final = 1.0
"""How long nothing is accepted once the system has no more file descriptors: as asyncio does."""

DEFER_SECONDS: Final = 1
"""How long the kernel keeps a new connection until its first bytes are there: a connection that
says nothing is nobody's work, and most others are answered as they are accepted."""

RECEIVE_BYTES: Final = 6 * 1024
"""Of a connection's receive buffer, which Linux doubles: 9 KiB come in one read, and that much is
held of each of some thousand connections that wait for their turn. Agents send under 1 KiB; a body
of 64 KiB takes 10 reads, and no longer than by a larger buffer."""

MAX_LISTENERS: Final = 64
"""One for each bridge of a host, and some to spare."""

MAX_SOURCES: Final = 4096
"""Addresses of one listener that are kept as they were judged, a few hundred bytes each: machines
that poll by a new connection each time come from the same ones again and again."""

MAX_NETWORKS: Final = 64
"""Networks of one listener: a proxy on each of a rack's hosts, one by one, and some to spare."""

MAX_SECRETS: Final = 4
"""Secrets of one listener: the new one and the old one while they are changed, for two kinds of
proxies. A signature is tried with each of them."""

MAX_PATH: Final = 4096
"""The longest path of a file: the system's own limit."""


class Listener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One address that guests ask at."""

    address: str = "127.0.0.1"
    """An IP address of this machine. On a loopback address a guest may also name itself by the
    path `/vm/NAME/metadata/...`; on any other only its source address tells who asks. `0.0.0.0` is
    every IPv4 address, and `::` every IPv6 address: for both, have two listeners."""
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
    proxy_secret_files: tuple[FileName, ...] = ()
    """Files that hold one secret each, any of which a trusted proxy may sign with: two while they
    are changed. Mode 0640 at most. Read at the start and again at SIGHUP."""
    proxy_without_header: bool = False
    """Whether a trusted proxy's requests are taken without `Metadata: true`, for those that drop
    it, as OpenStack's agent does. Off: the header keeps a guest's own servers from being made to
    ask for others."""

    def __str__(self) -> str:
        """Return it as an address is written in a URL."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"

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
        if self.name and not fleet_file.LISTENER.fullmatch(self.name):
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
        if any(not 0 < len(place) <= MAX_PATH for place in self.proxy_secret_files):
            raise FieldError("proxy_secret_files", "expected paths of files")
        if bool(self.trusted_proxies) != bool(self.proxy_secret_files):
            missing = "proxy_secret_files" if self.trusted_proxies else "trusted_proxies"
            message = "missing: a trusted proxy needs its address and a secret that it signs with"
            raise FieldError(missing, message)
        if self.proxy_without_header and not self.trusted_proxies:
            raise FieldError("proxy_without_header", "needs trusted_proxies")


def networks(listener: Listener) -> tuple[machines.Network, ...]:
    """Return its trusted networks."""
    return tuple(ipaddress.ip_network(text) for text in listener.trusted_proxies)


class CannotListen(OSError):  # noqa: N818 - a state of the machine, not a mistake of ours
    """A listener cannot be opened; the message is one line for the operator."""


SourceOf: TypeAlias = Callable[[str], machines.Source]
"""Tells where a connection comes from, by its peer's address."""


def source_of(listener: Listener, proxies: machines.Proxies | None = None) -> SourceOf:
    """Return what tells where this listener's connections come from."""
    is_loopback = ipaddress.ip_address(listener.address).is_loopback
    default_vm = model.key(listener.default_vm)

    @functools.lru_cache(maxsize=MAX_SOURCES)
    def source(host: str) -> machines.Source:
        address = machines.normalised(host)
        if proxies is not None and proxies.trusts(address):
            # What tells who asks is its signed headers alone: no path, no address, no default.
            return machines.Source(
                address=address,
                network=machines.network_of(address),
                listener=listener.name,
                trusted_proxy=True,
                without_header=proxies.without_header,
                proxies=proxies,
            )
        return machines.Source(
            address=address,
            network=machines.network_of(address),
            listener=listener.name,
            vm_paths=is_loopback,
            default_vm=default_vm,
        )

    return source


class Listeners:
    """All sockets of the plane; open them once memory is filled, and close them once."""

    def __init__(self, loop: "asyncio.AbstractEventLoop", connections: "Connections") -> None:
        self._loop = loop
        self._connections = connections
        self._sockets: list[socket.socket] = []

    async def open(
        self,
        listeners: Sequence[tuple[Listener, machines.Proxies | None]],
        handed_over: sockets.HandedOver,
    ) -> tuple[Listener, ...]:
        """Open them all, or none; return them with the ports that they have.

        Sockets that systemd has handed over are taken in place of our own.

        Raises:
            CannotListen: One of them cannot be opened; those before it are closed again.
        """
        if len(listeners) > MAX_LISTENERS:
            raise CannotListen(f"too many listeners: {len(listeners)}, at most {MAX_LISTENERS}")
        with contextlib.ExitStack() as undo:
            # No connection is served before all addresses are ours.
            opened = [undo.enter_context(_open(each, handed_over)) for each, _ in listeners]
            undo.callback(self.close)
            for (listener, proxies), own in zip(listeners, opened, strict=True):
                self._sockets.append(own)
                with _refusal(listener):
                    self._accept_from(own, source_of(listener, proxies))
            undo.pop_all()
        return tuple(
            msgspec.structs.replace(listener, port=own.getsockname()[1])
            for (listener, _), own in zip(listeners, opened, strict=True)
        )

    def _accept_from(self, listening: socket.socket, source_of: SourceOf) -> None:
        def accept_some() -> None:
            until = clock.monotonic() + ACCEPT_SECONDS
            for _ in range(ACCEPTS):
                try:
                    accepted, peer = listening.accept()
                except (BlockingIOError, ConnectionError):
                    return
                except OSError as error:
                    said = {"message": "cannot accept connections", "exception": error}
                    self._loop.call_exception_handler(said)
                    self._loop.remove_reader(listening)
                    self._loop.call_later(PAUSE_SECONDS, go_on)
                    return
                self._connections.accept(accepted, source_of(sockets.host_of(peer)))
                if clock.monotonic() > until:
                    return

        def go_on() -> None:
            if listening in self._sockets:
                self._loop.add_reader(listening, accept_some)

        go_on()

    def accept_at_once(self) -> None:
        """Accept connections before they say anything: once we stop, others would be reset."""
        for listening in self._sockets:
            _defer(listening, 0)

    def close(self) -> None:
        """Accept no more connections."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()


def _open(listener: Listener, handed_over: sockets.HandedOver) -> socket.socket:
    opened = handed_over.take(sockets.tcp_address(listener.address, listener.port))
    if opened is None:
        family = socket.AF_INET6 if ":" in listener.address else socket.AF_INET
        with _refusal(listener):
            found = socket.getaddrinfo(listener.address, listener.port, family, socket.SOCK_STREAM)
            opened = socket.create_server(found[0][4], family=family, backlog=BACKLOG)
    # A connection has the buffer of the socket that it came to.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    _defer(opened, DEFER_SECONDS)
    opened.settimeout(0)
    return opened


def _defer(listening: socket.socket, seconds: int) -> None:
    if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, seconds)


@contextlib.contextmanager
def _refusal(listener: Listener) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = sockets.obstacle(error, listener.address, listener.port)
        message = f"cannot listen on {listener}: {why}"
        raise CannotListen(message) from error
