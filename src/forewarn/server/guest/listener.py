"""The addresses that guests ask at: their settings, the sockets, and the kernel's filter there.

The kernel queues connections in their order and drops further ones while its queue is full. So a
crowd that is refused and connects again at once keeps everybody else out, however little a refusal
costs. `ConnectionFilter` puts a program of the kernel's packet filter on the listening socket that
drops the crowd's SYNs before they reach the queue; established connections are not touched. Where
the system cannot do that, nothing is dropped.

The command line reads the settings too, so nothing heavy is imported here.
"""

import array
import contextlib
import errno
import functools
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from forewarn import clock, status_port
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
in, first out, and a new connection would wait behind a crowd that connects again and again."""

ACCEPT_SECONDS: Final = 0.005
"""After this no further one is accepted in the round: served guests wait meanwhile."""

PAUSE_SECONDS: Final = 1.0
"""The pause in accepting once the system has no more file descriptors: as asyncio does."""

DEFER_SECONDS: Final = 1
"""The time for which the kernel keeps a new connection until its first bytes are there: a silent
connection costs us nothing, and most others are answered as they are accepted."""

RECEIVE_BYTES: Final = 6 * 1024
"""The size of a connection's receive buffer, which Linux doubles: 9 KiB come in one read, and that
much is held of each of some thousand connections that wait for their turn. Agents send under 1 KiB;
a body of 64 KiB takes 10 reads, and no longer than by a larger buffer."""

INTERFACE_SECONDS: Final = 1.0
"""The pause between two looks at the interfaces that listeners' addresses name."""

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

_log = logging.getLogger(__name__)  # not structlog: see above


class Listener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One address for guests' requests."""

    address: str = "127.0.0.1"
    """An IP address of this machine; a link-local one names its interface, as
    `fe80::a9fe:a9fe%br-blue`, which may come later or be made again. On a loopback address a
    request may name its machine by the path `/vm/NAME/metadata/...`; on any other only the source
    address identifies it. `0.0.0.0` is every IPv4 address, and `::` every IPv6 address: for both,
    have two listeners."""
    port: Port = 8170
    """8170, because ports below 1024 need privileges. Guests expect 80. 0 is any free one."""
    default_vm: str = ""
    """On a loopback address: the machine for requests without a name. `""`: none."""
    name: str = ""
    """The machines that call here have this `listener` in the fleet file; with `""` they have none.
    Several listeners may have the same name, such as an IPv4 and an IPv6 address of one bridge.
    Give names if two bridges have [equal
    addresses](../guides/production.md#two-bridges-with-equal-addresses)."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks, such as `192.0.2.7/32`, from which [proxies that sign](../guides/proxies.md) ask
    for machines. By default there are none, and a request with a proxy's headers is refused. 64 at
    most."""
    proxy_secret_files: tuple[FileName, ...] = ()
    """Files with one secret each; a trusted proxy may sign with any of them. Four at most. A secret
    has at least 16 bytes, without spaces at its ends; its file has mode 0640 or stricter. They are
    read again at SIGHUP; if one cannot be read, all stay as they were. Two are for the time in
    which a secret is changed."""
    proxy_without_header: bool = False
    """`true` accepts a trusted proxy's requests without `Metadata: true`, for a proxy that drops
    it, as OpenStack's agent does. The header protects a guest whose web server can be made to fetch
    any address."""

    def __str__(self) -> str:
        """Return it as an address is written in a URL."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"

    def __post_init__(self) -> None:
        """Refuse values that the types allow and no listener can have."""
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
        if "" in self.proxy_secret_files:
            raise FieldError("proxy_secret_files", "expected paths of files")
        if bool(self.trusted_proxies) != bool(self.proxy_secret_files):
            missing = "proxy_secret_files" if self.trusted_proxies else "trusted_proxies"
            message = "missing: a trusted proxy needs its address and a secret that it signs with"
            raise FieldError(missing, message)
        if self.proxy_without_header and not self.trusted_proxies:
            raise FieldError("proxy_without_header", "needs trusted_proxies")


class CannotListen(OSError):  # noqa: N818 - a state of the machine, not a mistake of ours
    """A listener cannot be opened; the message is one line for the operator."""


SourceOf: TypeAlias = Callable[[str], machines.Source]
"""Returns the source of a connection, by its peer's address."""


def source_of(listener: Listener, proxies: machines.Proxies | None = None) -> SourceOf:
    """Return a function from a peer's address to the source of its connections at this listener."""
    is_loopback = ipaddress.ip_address(listener.address).is_loopback
    default_vm = model.key(listener.default_vm)

    @functools.lru_cache(maxsize=MAX_SOURCES)
    def source(host: str) -> machines.Source:
        address = machines.normalised(host)
        if proxies is not None and proxies.trusts(address):
            # What tells who asks is its signed headers alone: no path, no address, no default.
            return machines.Source(
                address=address,
                listener=listener.name,
                trusted_proxy=True,
                without_header=proxies.without_header,
                proxies=proxies,
            )
        return machines.Source(
            address=address,
            listener=listener.name,
            vm_paths=is_loopback,
            default_vm=default_vm,
        )

    return source


@dataclass(eq=False)
class OpenListener:
    """A listener, and its socket."""

    listener: Listener
    source_of: SourceOf
    opened: socket.socket | None = None
    """None while the interface that the address names is missing."""
    waits_for: str = ""
    """The reason, once it was logged."""


@dataclass(eq=False, repr=False)
class Listeners:
    """All sockets of the plane; open them once memory is filled, and close them once.

    An address that names an interface, as `fe80::1%br0`, is listened on while there is that one: it
    may come later, and be made again.
    """

    loop: "asyncio.AbstractEventLoop"
    connections: "Connections"
    _all: list[OpenListener] = field(default_factory=list)
    _following: "asyncio.TimerHandle | None" = None

    async def open(
        self,
        listeners: Sequence[tuple[Listener, machines.Proxies | None]],
        handed_over: sockets.HandedOver,
    ) -> tuple[Listener, ...]:
        """Open them all, or none; return them with the ports that they have.

        Sockets that systemd has handed over are taken in place of our own. A missing interface is
        waited for.

        Raises:
            CannotListen: One of them cannot be opened; those before it are closed again.
        """
        if len(listeners) > MAX_LISTENERS:
            raise CannotListen(f"too many listeners: {len(listeners)}, at most {MAX_LISTENERS}")
        self._all = [OpenListener(each, source_of(each, proxies)) for each, proxies in listeners]
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            # No connection is served before all addresses are ours.
            for each in self._all:
                self._open(each, handed_over)
            for each in self._all:
                self._serve(each)
            undo.pop_all()
        if any("%" in each.address for each, _ in listeners):
            self._following = self.loop.call_later(INTERFACE_SECONDS, self._follow_interfaces)
        return tuple(each.listener for each in self._all)

    def _open(self, each: OpenListener, handed_over: sockets.HandedOver) -> None:
        try:
            each.opened = _open(each.listener, handed_over)
        except CannotListen as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.ENODEV:
                raise
            _wait(each, error)

    def _serve(self, each: OpenListener) -> None:
        if each.opened is not None:
            with _refusal(each.listener):
                self._accept_from(each, each.opened)
            self.connections.filter.guard(each.listener.name, each.opened)
            port = each.opened.getsockname()[1]
            each.listener = msgspec.structs.replace(each.listener, port=port)

    def _follow_interfaces(self) -> None:
        self._following = self.loop.call_later(INTERFACE_SECONDS, self._follow_interfaces)
        for each in self._all:
            if each.opened is not None and status_port.is_lost(each.opened, each.listener.address):
                self.connections.filter.forget(each.opened)
                self._close(each)
            if each.opened is None:
                self._open_again(each)

    def _open_again(self, each: OpenListener) -> None:
        try:
            self._open(each, sockets.HandedOver())
            self._serve(each)
        except CannotListen as error:
            self._close(each)
            _wait(each, error)
        if each.opened is not None:
            _log.info("%s is listened on now", each.listener)
            each.waits_for = ""

    def _accept_from(self, place: OpenListener, listening: socket.socket) -> None:
        def accept_some() -> None:
            until = clock.monotonic() + ACCEPT_SECONDS
            for _ in range(ACCEPTS):
                try:
                    accepted, peer = listening.accept()
                except (BlockingIOError, ConnectionError):
                    return
                except OSError as error:
                    said = {"message": "cannot accept connections", "exception": error}
                    self.loop.call_exception_handler(said)
                    self.loop.remove_reader(listening)
                    self.loop.call_later(PAUSE_SECONDS, go_on)
                    return
                self.connections.accept(accepted, place.source_of(sockets.host_of(peer)))
                if clock.monotonic() > until:
                    return

        def go_on() -> None:
            if place.opened is listening:
                self.loop.add_reader(listening, accept_some)

        go_on()

    def accept_at_once(self) -> None:
        """Accept connections before they say anything: once we stop, others would be reset."""
        for each in self._all:
            if each.opened is not None:
                _defer(each.opened, 0)

    def close(self) -> None:
        """Accept no more connections."""
        if self._following is not None:
            self._following.cancel()
        for each in self._all:
            self._close(each)

    def _close(self, each: OpenListener) -> None:
        if each.opened is not None:
            self.loop.remove_reader(each.opened)
            each.opened.close()
            each.opened = None


def _wait(each: OpenListener, error: CannotListen) -> None:
    why = str(error)
    if why != each.waits_for:
        each.waits_for = why
        _log.warning("%s; it is tried again, and other listeners serve", why)


def _open(listener: Listener, handed_over: sockets.HandedOver) -> socket.socket:
    opened = handed_over.take(sockets.tcp_address(listener.address, listener.port))
    if opened is None:
        with _refusal(listener):
            opened = sockets.listening((listener.address, listener.port), BACKLOG)
    else:
        take_filter_off(opened)  # that of the process before
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


DROP_SECONDS: Final = 5.0
"""The least time for which new connections of a network are dropped: as long as a refusal says to
wait. The client's system tries again meanwhile by itself."""

APPLY_SECONDS: Final = 0.05
"""From the first network to the next change of the program: one change takes 1 to 3 ms."""

MAX_DROPPED: Final = 200
"""Networks at a time. A program has three instructions for each, nine for an IPv6 address; the
kernel goes through them for each SYN, in a microsecond or two, and takes 4,096 at most."""

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
"""Linux's numbers (socket(7)), which Python has no names for."""

# Instructions of the classic BPF: (operation, jump if so, jump if not, operand).
_Instruction = tuple[int, int, int, int]
_INSTRUCTION: Final = struct.Struct("=HBBI")
_LOAD_WORD, _LOAD_BYTE, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x30, 0x15, 0x45, 0x06
_DROP: Final = (_RETURN, 0, 0, 0)
_PASS: Final = (_RETURN, 0, 0, 0xFFFFFFFF)
_IP_HEADER: Final = 0xFFF00000
"""The base of an offset into the IP header; others count from the TCP header."""
_TCP_FLAGS: Final = 13
_SYN: Final = 0x02


def filter_program(family: socket.AddressFamily, networks: Collection[str]) -> bytes:
    """Return a program that drops SYNs from these networks.

    Args:
        family: Of the socket; networks of the other family never reach it.
        networks: As `Registry.network` returns them; one with a zone is passed over, because its
            address may be a neighbour's on another link.
    """
    wanted: list[_Instruction] = []
    source = 8 if family == socket.AF_INET6 else 12
    for each in networks:
        if (family == socket.AF_INET6) != (":" in each) or "%" in each:
            continue
        network = ipaddress.ip_network(each)
        size = network.prefixlen // 8
        for at in range(0, size, 4):
            word = int.from_bytes(network.network_address.packed[at : at + 4], "big")
            to_the_next = (size - at) // 2 - 1
            wanted.append((_LOAD_WORD, 0, 0, _IP_HEADER + source + at))
            wanted.append((_IF_EQUAL, 0, to_the_next, word))
        wanted.append(_DROP)
    if not wanted:
        return b""
    start = [(_LOAD_BYTE, 0, 0, _TCP_FLAGS), (_IF_ANY_BIT, 1, 0, _SYN), _PASS]
    return b"".join(_INSTRUCTION.pack(*each) for each in (*start, *wanted, _PASS))


@dataclass(eq=False, repr=False)
class ConnectionFilter:
    """The networks whose new connections are dropped, and the sockets that drop them.

    Used on the loop alone.
    """

    loop: "asyncio.AbstractEventLoop"
    is_active: bool = False
    _sockets: list[tuple[str, socket.socket]] = field(default_factory=list)
    _programs: dict[socket.socket, bytes] = field(default_factory=dict)
    _dropped: set[tuple[str, str]] = field(default_factory=set)
    """Listeners and networks."""
    _is_soon: bool = False

    def guard(self, listener: str, listening: socket.socket) -> None:
        """Drop connections to this socket, too."""
        self._sockets.append((listener, listening))
        if self._dropped:
            self._apply_soon()

    def forget(self, listening: socket.socket) -> None:
        """Drop no more connections to a socket that is about to be closed."""
        self._sockets = [each for each in self._sockets if each[1] is not listening]
        self._programs.pop(listening, None)

    def drop(self, listener: str, network: str) -> bool:
        """Drop new connections of a network for a while; return True if that is new."""
        key = (listener, network)
        if key in self._dropped or len(self._dropped) >= MAX_DROPPED:
            return False
        self._dropped.add(key)
        # One after another: of a crowd that was dropped at once, all are trying again by then.
        seconds = DROP_SECONDS + len(self._dropped) * APPLY_SECONDS
        self.loop.call_later(seconds, self._let_in, key)
        self._apply_soon()
        return True

    def drops(self, listener: str, network: str) -> bool:
        """Return True if connections of a network are dropped: some were queued before."""
        return (listener, network) in self._dropped

    def _let_in(self, key: tuple[str, str]) -> None:
        self._dropped.discard(key)
        self._apply_soon()

    def _apply_soon(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            self.loop.call_later(APPLY_SECONDS, self._apply)

    def _apply(self) -> None:
        self._is_soon = False
        for name, listening in self._sockets:
            networks = sorted(network for listener, network in self._dropped if listener == name)
            wanted = filter_program(listening.family, networks)
            if wanted != self._programs.get(listening, b""):
                _attach(listening, wanted)
                self._programs[listening] = wanted
        self.is_active = any(self._programs.values())


def take_filter_off(filtered: socket.socket) -> None:
    """Take its program from a socket.

    A new connection has that of its listening socket, and would keep it in the kernel for as long
    as it is open. A listening socket that was handed over may have that of the process before.
    """
    with contextlib.suppress(OSError):  # it has none
        filtered.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _attach(listening: socket.socket, wanted: bytes) -> None:
    with contextlib.suppress(OSError):  # it is closed, or the system has no such filter
        if not wanted:
            listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        code = array.array("B", wanted)
        place, size = code.buffer_info()
        given = struct.pack("@HP", size // _INSTRUCTION.size, place)
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, given)
