"""Ports for servers that are started a while after they were given one."""

import atexit
import collections
import contextlib
import errno
import socket
import sys
from collections.abc import Iterable
from typing import Final

KEPT: Final = 64
"""How many sockets stay bound for them: more than one test needs, and few of a process's files."""

_kept: collections.deque[socket.socket] = collections.deque()


def free_port(*addresses: str) -> int:
    """Return a port that nobody has, at one address or at several.

    On Linux it stays bound though nobody listens there: the system gives it to nobody who asks for
    any port, and a server that sets SO_REUSEADDR, as all of ours do, may listen on it. Otherwise
    another process might have it before the server has begun, or while it is started anew.

    Args:
        addresses: Of this machine; 127.0.0.1 if left out.
    """
    while True:
        made = [socket.socket() for _ in addresses or "1"]
        try:
            port = _bind(made, addresses or ("127.0.0.1",))
        except OSError as error:
            _close(made)
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            break
    if sys.platform == "linux":
        _kept.extend(made)
        _close([_kept.popleft() for _ in range(len(_kept) - KEPT)])
    else:
        _close(made)
    return port


def _bind(sockets: list[socket.socket], addresses: tuple[str, ...]) -> int:
    port = 0
    for each, address in zip(sockets, addresses, strict=True):
        if sys.platform == "linux":  # elsewhere it would let two have one port
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind((address, port))
        port = int(each.getsockname()[1])
    return port


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


atexit.register(_close, _kept)  # or Python warns of each at its end, where a test left it to


def answers(port: int, address: str = "127.0.0.1") -> bool:
    """Tell whether somebody takes connections at a port."""
    with contextlib.suppress(OSError), socket.create_connection((address, port)):
        return True
    return False
