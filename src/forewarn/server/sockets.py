"""Opens the operators' sockets, and explains for both planes why an address cannot be listened on.

The unix socket never exists with a mode other than 0600, or 0660 for its group. A socket file that
a crash left behind is removed only if nobody answers on it.

A socket that systemd opened (`forewarn.socket`) is taken in place of our own, by its address. Its
file, its mode and its queue are systemd's: connections wait in the queue while no process runs.
"""

import contextlib
import errno
import ipaddress
import logging
import os
import socket
import stat
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from forewarn import status_port

MAX_PATH_BYTES: Final = 107
"""The longest path of a unix socket on Linux (and 103 elsewhere, which the system then says)."""

BACKLOG: Final = 4096
"""Connections that may wait to be accepted, as far as the system allows it: all relays come at once
when a replica has gone, and a unix socket refuses clients that do not wait where it is full."""

ANSWER_SECONDS: Final = 2.0
"""The time for a server that may be there to accept a connection."""

TCP_CLOSE: Final = 7
"""Linux's number of a connection's state after a reset."""

TCP_CLOSE_WAIT: Final = 8
"""The same after the peer's FIN."""


class SocketUnusable(Exception):  # noqa: N818 - a state of the address, not a mistake of ours
    """A socket cannot be opened; the message is one line for the operator."""


def tcp_state(connection: socket.socket | None) -> int:
    """Return a connection's state, which shows what came though nothing is read; 0 if unknown."""
    if connection is None or not sys.platform.startswith("linux"):
        return 0
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return 0


class HandedOver:
    """The listening sockets that systemd opened for us, until their listeners take them.

    Args:
        files: Their numbers, such as `systemd.listening_files` returns.

    Raises:
        SocketUnusable: One of them cannot be used.
    """

    def __init__(self, files: Iterable[int] = ()) -> None:
        self._by_address: dict[str, socket.socket] = {}
        with contextlib.ExitStack() as on_error:
            for number in files:
                try:
                    # It is not to stay open in the programs that we start.
                    os.set_inheritable(number, False)  # noqa: FBT003 - the name says it
                    given = on_error.enter_context(socket.socket(fileno=number))
                except OSError as error:
                    message = f"systemd handed over no socket as file {number}: {error.strerror}"
                    raise SocketUnusable(message) from error
                address = _address_of(given)
                if _has_lost_interface(given):
                    message = "the interface of %s has gone: restart the unit of systemd's socket"
                    logging.getLogger(__name__).warning(message, address)
                    given.close()
                    continue
                if address in self._by_address:
                    raise SocketUnusable(f"systemd handed over two sockets at {address}")
                self._by_address[address] = given
            on_error.pop_all()

    def __len__(self) -> int:
        """Return the number of sockets that were not taken yet."""
        return len(self._by_address)

    def missing(self, wanted: Collection[str]) -> tuple[str, ...]:
        """Return the addresses that we listen on and no socket was handed over for.

        Raises:
            SocketUnusable: One was handed over where we do not listen: its clients would wait for
                ever.
        """
        for address in self._by_address:
            if address not in wanted:
                raise SocketUnusable(
                    f"systemd handed over a socket at {address}, which the settings do not have: "
                    "add it to them, or remove it from forewarn.socket"
                )
        return tuple(address for address in wanted if address not in self._by_address)

    def close(self) -> None:
        """Close those that nobody took."""
        while self._by_address:
            self._by_address.popitem()[1].close()

    def take(self, address: str) -> socket.socket | None:
        """Return the socket at an address, as `tcp_address` or `unix_address` writes it."""
        given = self._by_address.pop(address, None)
        if given is not None:
            given.settimeout(0)
        return given


def tcp_address(host: str, port: int) -> str:
    """Return an IP address and a port in the spelling of `HandedOver`."""
    return shown(str(ipaddress.ip_address(host)), port)


def unix_address(path: Path) -> str:
    """Return a unix socket's path in the spelling of `HandedOver`, with all links resolved."""
    return f"unix:{os.path.realpath(path)}"


def _address_of(given: socket.socket) -> str:
    name = given.getsockname()
    if given.family == getattr(socket, "AF_UNIX", None):
        path = os.fsdecode(name)  # of an abstract one it begins with a NUL, as no file's does
        address = f"unix:@{path[1:]}" if path[:1] == "\0" else unix_address(Path(path))
    elif given.family in {socket.AF_INET, socket.AF_INET6}:
        address = tcp_address(host_of(name), name[1])
    else:
        raise SocketUnusable(f"systemd handed over a socket of another family: {given.family}")
    is_stream = given.type == socket.SOCK_STREAM
    if not is_stream or not given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise SocketUnusable(
            f"the socket that systemd handed over at {address} does not listen: it must be a "
            "ListenStream= of a unit with Accept=no"
        )
    is_any = given.family == socket.AF_INET6 and ipaddress.ip_address(name[0]).is_unspecified
    if is_any and not given.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        raise SocketUnusable(
            f"the socket that systemd handed over at {address} takes IPv4 too, which a listener "
            "of this address does not: set BindIPv6Only=ipv6-only in forewarn.socket"
        )
    return address


def _has_lost_interface(given: socket.socket) -> bool:
    name = given.getsockname()
    index = name[3] if given.family == socket.AF_INET6 else 0
    return bool(index) and "%" not in host_of(name)


def open_unix(path: Path, group: str = "") -> socket.socket:
    """Open a unix socket that only this user, and the members of a group, can connect to.

    SocketUnusable if a server answers there, the file is not a socket, or it cannot be made; or if
    there is no such group, or the socket may not be given to it.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise SocketUnusable(
            f"the socket path {path} is longer than {MAX_PATH_BYTES} bytes, the system's limit: "
            "set operator.socket to a shorter one"
        )
    with contextlib.ExitStack() as on_error:
        opened = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            _remove_stale(path)
            before = os.umask(0o177)  # the file never exists with another mode
            try:
                opened.bind(str(path))
            finally:
                os.umask(before)
            if group:
                _give_to(group, path)
            opened.listen(BACKLOG)
        except OSError as error:
            message = f"cannot open the operator socket {path}: {_path_obstacle(error, path)}"
            raise SocketUnusable(message) from error
        on_error.pop_all()
    opened.settimeout(0)
    return opened


def _give_to(group: str, path: Path) -> None:
    import grp  # noqa: PLC0415 - there is none on Windows, nor a unix socket

    if not hasattr(socket, "SO_PEERCRED"):
        raise SocketUnusable(
            "operator.socket_group: this system does not tell who connects, so nobody but the "
            "service's user can be let in: remove the setting"
        )
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError as error:
        message = f"operator.socket_group: there is no group {group!r} on this machine"
        raise SocketUnusable(message) from error
    try:
        os.chown(path, -1, number)
    except PermissionError as error:
        raise SocketUnusable(
            f"operator.socket_group: the service's user does not belong to {group!r}, so it cannot "
            f"give the socket to it: add it ('usermod -aG {group} USER')"
        ) from error
    path.chmod(0o660)


def open_tcp(address: str, port: int, setting: str = "operator.listen") -> socket.socket:
    """Open the TCP socket of a setting; port 0 is any free one."""
    try:
        opened = listening((address, port), BACKLOG)
    except OSError as error:
        why = obstacle(error, address, port)
        message = f"cannot listen on {shown(address, port)} ({setting}): {why}"
        raise SocketUnusable(message) from error
    opened.settimeout(0)
    return opened


def listening(address: tuple[Any, ...], backlog: int) -> socket.socket:
    """Return a socket that listens at an address, which the machine may get later; or OSError."""
    opened, is_late = status_port.listening(address, backlog)
    if is_late:
        # Not structlog: settings are read without what the server's extra installs.
        logging.getLogger(__name__).warning("this machine does not have %s yet", address[0])
    return opened


def host_of(name: Sequence[Any] | None) -> str:
    """Return the address of a socket or of its peer, a link-local one with its zone.

    `""` where there is none.
    """
    if not name:
        return ""
    host = str(name[0])
    if len(name) < 4 or not name[3] or "%" in host:
        return host
    try:
        return f"{host}%{socket.if_indextoname(name[3])}"
    except OSError:  # the interface went since
        return host


def shown(address: str, port: int) -> str:
    """Return an IP address and a port as URLs have them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def remove(path: Path) -> None:
    """Remove a unix socket's file, if it is one."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def obstacle(error: OSError, host: str, port: int) -> str:
    """Return the reason why an IP address and port cannot be listened on, and the remedy."""
    match error.errno:
        case errno.EADDRINUSE:
            return (
                "the address is in use: stop what listens there "
                f"('ss -ltnp sport = :{port}' shows it), or give another port"
            )
        case errno.EADDRNOTAVAIL:
            return (
                "no interface of this machine has the address: add it "
                f"('ip address add {host} dev INTERFACE'), or give another"
            )
        case errno.EACCES | errno.EPERM:
            return (
                "this port needs a privilege: give the service CAP_NET_BIND_SERVICE, or a port "
                "from 1024 on"
            )
        case errno.EINVAL if ":" in host:
            return "a link-local address names its interface: give one such as fe80::1%br0"
        case errno.EAFNOSUPPORT:
            return "this machine does not support that family of addresses: give another"
        case _:
            return error.strerror or str(error)


def _path_obstacle(error: OSError, path: Path) -> str:
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


def url_for_browsers(scheme: str, host: str, opened: socket.socket, names: tuple[str, ...]) -> str:
    """Return the page's URL for browsers: at the address of a proxy, if one is named."""
    for name in names:
        if "://" in name:
            return name
    port = opened.getsockname()[1]
    if names:
        return f"{scheme}://{shown(names[0], port)}"
    everywhere = ipaddress.ip_address(host).is_unspecified
    return f"{scheme}://{shown('localhost' if everywhere else host, port)}"
