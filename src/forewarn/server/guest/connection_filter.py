"""Has the kernel drop new connections from addresses that open far too many.

The kernel queues connections in their order and drops what comes while its queue is full. So a
crowd that is refused and connects again at once keeps everybody else out, however little a refusal
costs. A program for the kernel's packet filter on the listening socket drops the crowd's SYNs
before they reach the queue; established connections are not touched. Where the system cannot do
that, nothing is dropped.
"""

import array
import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections.abc import Collection
from typing import Final

DROP_SECONDS: Final = 5.0
"""How long new connections of a network are dropped, at least: as long as a refusal says to wait.
The client's system tries again meanwhile by itself."""

APPLY_SECONDS: Final = 0.05
"""From the first network to the next change of the program: one change takes 1 to 3 ms."""

MAX_DROPPED: Final = 200
"""Networks at a time. A program has two instructions for each, five for IPv6; the kernel goes
through them for each SYN, in a microsecond, and takes 4,096 at most."""

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
"""What an offset into the IP header is counted from; others count from the TCP header."""
_TCP_FLAGS: Final = 13
_SYN: Final = 0x02


def program(family: socket.AddressFamily, networks: Collection[str]) -> bytes:
    """Return a program that drops SYNs from these networks.

    Args:
        family: Of the socket; networks of the other family never reach it.
        networks: As `machines.network_of` returns them; one with a zone is passed over, because its
            address may be a neighbour's on another link.
    """
    wanted: list[_Instruction] = []
    for each in networks:
        if (family == socket.AF_INET6) != (":" in each) or "%" in each:
            continue
        source = int(ipaddress.ip_network(each).network_address)
        if family == socket.AF_INET:
            wanted += [(_IF_EQUAL, 0, 1, source), _DROP]
            continue
        high, low = divmod(source >> 64, 1 << 32)
        wanted += [
            (_LOAD_WORD, 0, 0, _IP_HEADER + 8),
            (_IF_EQUAL, 0, 3, high),
            (_LOAD_WORD, 0, 0, _IP_HEADER + 12),
            (_IF_EQUAL, 0, 1, low),
            _DROP,
        ]
    if not wanted:
        return b""
    start = [(_LOAD_BYTE, 0, 0, _TCP_FLAGS), (_IF_ANY_BIT, 1, 0, _SYN), _PASS]
    if family == socket.AF_INET:
        start.append((_LOAD_WORD, 0, 0, _IP_HEADER + 12))
    return b"".join(_INSTRUCTION.pack(*each) for each in (*start, *wanted, _PASS))


class ConnectionFilter:
    """The networks whose new connections are dropped, and the sockets that drop them.

    Used on the loop alone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sockets: list[tuple[str, socket.socket]] = []
        self._programs: dict[socket.socket, bytes] = {}
        self._dropped: set[tuple[str, str]] = set()
        """Listeners and networks."""
        self._is_soon = False
        self.is_active = False
        """Whether any socket has a program."""

    def guard(self, listener: str, listening: socket.socket) -> None:
        """Drop connections to this socket, too."""
        self._sockets.append((listener, listening))

    def drop(self, listener: str, network: str) -> bool:
        """Drop new connections of a network for a while; return whether that is new."""
        key = (listener, network)
        if key in self._dropped or len(self._dropped) >= MAX_DROPPED:
            return False
        self._dropped.add(key)
        # One after another: of a crowd that was dropped at once, all are trying again by then.
        seconds = DROP_SECONDS + len(self._dropped) * APPLY_SECONDS
        self._loop.call_later(seconds, self._let_in, key)
        self._apply_soon()
        return True

    def drops(self, listener: str, network: str) -> bool:
        """Return whether connections of a network are dropped: some were queued before."""
        return (listener, network) in self._dropped

    def _let_in(self, key: tuple[str, str]) -> None:
        self._dropped.discard(key)
        self._apply_soon()

    def _apply_soon(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            self._loop.call_later(APPLY_SECONDS, self._apply)

    def _apply(self) -> None:
        self._is_soon = False
        for name, listening in self._sockets:
            networks = sorted(network for listener, network in self._dropped if listener == name)
            wanted = program(listening.family, networks)
            if wanted != self._programs.get(listening, b""):
                _attach(listening, wanted)
                self._programs[listening] = wanted
        self.is_active = any(self._programs.values())


def release(filtered: socket.socket) -> None:
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
        filter_program = struct.pack("@HP", size // _INSTRUCTION.size, place)
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)
