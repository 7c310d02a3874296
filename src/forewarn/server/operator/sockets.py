"""The operator plane's sockets, and uvicorn on them.

The unix socket never exists with a mode other than 0600. A socket file that a crash left behind is
removed only if nobody answers on it.
"""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from forewarn.server import binding
from forewarn.server.operator import auth
from forewarn.server.operator.auth import Application

MAX_PATH_BYTES: Final = 107
"""The longest path of a unix socket on Linux (and 103 elsewhere, which the system then says)."""

BACKLOG: Final = 128
"""Connections that may wait to be accepted: operators are few."""

MAX_CONNECTIONS: Final = 512
"""Connections at once: operators' tools are few. One more closes the oldest that has no request
under way that `auth.Gate` let through; where all have one, it is answered 503."""

HEAD_SECONDS: Final = 5.0
"""How long a request's head may take, from the connection's start or the head's first bytes."""

LOG_SECONDS: Final = 60.0
"""How long nothing more is logged of connections that were closed for the same reason."""

MAX_HEAD_BYTES: Final = 128 * 1024
"""The longest head of a request: its path may name `schemas.MAX_REMOVED` machines."""

IDLE_SECONDS: Final = 75
"""How long a connection may be silent between requests."""

FINISH_SECONDS: Final = 5
"""How long requests under way may take to finish once the service stops."""

ANSWER_SECONDS: Final = 2.0
"""How long a server that may be there has to accept a connection."""

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

Socket = socket.socket

_log = structlog.get_logger(__name__)


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


class _Config(uvicorn.Config):
    """What a server's connections share."""

    order: "dict[OperatorConnection, None]"
    """The open ones, oldest first."""
    logged: dict[str, float]
    """When each reason was logged last, by the loop's time."""
    head_seconds: float


class OperatorConnection(H11Protocol):
    """uvicorn's connection, but a head has its time, and who has shown no right gives way first.

    Without these, some hundred strangers that send half a head each keep operators out.
    """

    config: _Config
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a peer in, and close the oldest one without a right if there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._begin_head()
        order = self.config.order
        order[self] = None
        if len(order) > MAX_CONNECTIONS:
            oldest = next((each for each in order if not each.is_admitted()), self)
            if oldest is not self:
                oldest.cut_off("connections")

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end_head()
        elif self._late is None:
            self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer."""
        self._end_head()
        self.config.order.pop(self, None)
        super().connection_lost(exc)

    def is_admitted(self) -> bool:
        """Return whether a request is under way that `auth.Gate` let through."""
        # uvicorn has none before the first request, whatever its annotation says.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:
            return False
        return bool(cycle.scope.get(auth.ADMITTED))

    def _begin_head(self) -> None:
        seconds = self.config.head_seconds
        self._late = self.loop.call_later(seconds, self.cut_off, "slow-request")

    def _end_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def cut_off(self, reason: str) -> None:
        """Close at once, and log it once a minute."""
        now, logged = self.loop.time(), self.config.logged
        if now - logged.get(reason, -LOG_SECONDS) >= LOG_SECONDS:
            logged[reason] = now
            address = self.client[0] if self.client else ""
            _log.warning("an operators' connection was closed", reason=reason, address=address)
        # Not only once the loop says that it is lost: others count it before that.
        self.config.order.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn within our process, which handles signals itself; `should_exit` stops it.

    Args:
        application: Answers the requests.
        head_seconds: How long a request's head may take.
    """

    def __init__(self, application: Application, head_seconds: float = HEAD_SECONDS) -> None:
        config = _Config(
            application,
            http=OperatorConnection,  # h11 limits a head's size; operators need no faster parser
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=FINISH_SECONDS,
            limit_concurrency=MAX_CONNECTIONS + 1,  # from this many on it answers 503
        )
        config.order, config.logged, config.head_seconds = {}, {}, head_seconds
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield
