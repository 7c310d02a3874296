"""The operator plane's sockets, and uvicorn on them.

The unix socket never exists with a mode other than 0600. A socket file that a crash left behind is
removed only if nobody answers on it.
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

MAX_HEAD_BYTES: Final = 128 * 1024
"""The longest head of a request: its path may name `schemas.MAX_REMOVED` machines."""

IDLE_SECONDS: Final = 75
"""How long a connection may be silent between requests."""

FINISH_SECONDS: Final = 5
"""How long requests under way may take to finish once the service stops."""

ANSWER_SECONDS: Final = 2.0
"""How long a server that may be there has to accept a connection."""

Socket = socket.socket


class SocketUnusable(Exception):  # noqa: N818 - a state of the address, not a mistake of ours
    """A socket cannot be opened; the message is one line for the operator."""


def open_unix(path: Path) -> socket.socket:
    """Open a unix socket that only this user can connect to.

    Raises:
        SocketUnusable: A server answers there, the file is not a socket, or it cannot be made.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        message = (
            f"the socket path {path} is longer than {MAX_PATH_BYTES} bytes, the system's limit: "
            "set operator.socket to a shorter one"
        )
        raise SocketUnusable(message)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o177)  # the file never exists with another mode
        try:
            opened.bind(str(path))
        finally:
            os.umask(before)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        message = f"cannot open the operator socket {path}: {_obstacle(error, path)}"
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
        SocketUnusable: The address is in use, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        opened = socket.create_server((address, port), family=family, backlog=BACKLOG)
    except OSError as error:
        shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        why = binding.obstacle(error, address, port)
        message = f"cannot listen on {shown} (operator.listen): {why}"
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
            what = f"the folder {path.parent} does not exist: create it"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            what = f"the service's user cannot write to the folder {path.parent}: allow it"
        case _:
            what = f"{error.strerror or error}: correct that"
    return f"{what}, or set operator.socket to another path"


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        message = f"{path} exists and is not a socket: move it, or set another operator.socket"
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
    message = f"another server answers at {path}: stop it, or set another operator.socket"
    raise SocketUnusable(message)


class Server(uvicorn.Server):
    """uvicorn within our process, which handles signals itself; `should_exit` stops it."""

    def __init__(self, application: Application) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http="h11",  # it limits a request's head; operators need no faster parser
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
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
