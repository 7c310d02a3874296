"""The operator plane's sockets, opened with care, and uvicorn on them.

The unix socket never exists with more rights than mode 0600. One that a crash left behind is
removed only if nobody answers on it; another server's is left alone.
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvicorn

from forewarn.server import binding
from forewarn.server.operator.auth import Application

MAX_PATH_BYTES: Final = 107
"""The longest path of a unix socket on Linux (and 103 elsewhere, which the system then says)."""

BACKLOG: Final = 128
"""Connections that may wait to be accepted: operators are few."""

MAX_CONNECTIONS: Final = 512
"""Connections at once; further ones are answered 503. Operators' tools are few."""

IDLE_SECONDS: Final = 75
"""How long a connection may be silent between requests."""

FINISH_SECONDS: Final = 5
"""How long requests under way may take to finish once the service stops."""

ANSWER_SECONDS: Final = 2.0
"""How long a server that may be there has to take a connection."""


Socket = socket.socket


class SocketUnusable(Exception):  # noqa: N818 - a state of the address, not a mistake of ours
    """A socket cannot be opened; the message is one line for the operator."""


def open_unix(path: Path) -> socket.socket:
    """Open a unix socket that only this user can connect to.

    Raises:
        SocketUnusable: Somebody answers there, what is there is no socket, or it cannot be made.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        message = (
            f"the socket's path {path} is longer than {MAX_PATH_BYTES} bytes, the most that the "
            "system takes: name a shorter one as operator.socket"
        )
        raise SocketUnusable(message)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o177)  # the file is made with its mode: there is no moment without it
        try:
            opened.bind(str(path))
        finally:
            os.umask(before)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        message = f"the operator socket {path} cannot be opened, {_obstacle(error, path)}"
        raise SocketUnusable(message) from error
    except SocketUnusable:
        opened.close()
        raise
    opened.settimeout(0)
    return opened


def open_tcp(address: str, port: int) -> socket.socket:
    """Open a TCP socket.

    Args:
        address: An IP address of this machine.
        port: 0 for any free one.

    Raises:
        SocketUnusable: It is taken, or none of this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((address, port))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        why = binding.obstacle(error, address, port)
        message = f"operator.listen {shown} cannot be opened: {why}"
        raise SocketUnusable(message) from error
    opened.settimeout(0)
    return opened


def remove(path: Path) -> None:
    """Remove a unix socket's file, if it is one."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def _obstacle(error: OSError, path: Path) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            what = f"there is no folder {path.parent}: make it"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            what = f"the folder {path.parent} may not be written to: give the service's user that"
        case _:
            what = f"{error.strerror or error}: mend that"
    return f"{what}, or name another place as operator.socket"


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        message = f"{path} is there and is no socket: move it away, or name another place"
        raise SocketUnusable(message)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    message = f"another server answers at {path}: end that one, or name another operator.socket"
    raise SocketUnusable(message)


class Server(uvicorn.Server):
    """uvicorn within our process: signals are ours, and `should_exit` stops it."""

    def __init__(self, application: Application) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http="h11",  # it bounds a request's head; operators need no other's speed
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=FINISH_SECONDS,
                limit_concurrency=MAX_CONNECTIONS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield
