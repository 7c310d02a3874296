"""The port for a process's status: pages by their paths, and the text of metrics.

For the small processes that run everywhere, the agent and the relay: each probe is answered by a
thread of its own from the process's last publication, so it neither waits for the process nor
disturbs it. Metrics are plain text made here: prometheus-client would cost half of a small
process's start again (docs/internals/decisions/0010).
"""

import contextlib
import errno
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import h11

from forewarn import clock

CONNECTIONS: Final = 64
"""Connections at once: probes and peers take milliseconds."""

SHARE: Final = 16
"""The most of these for one address. One more ends that address's oldest, and one more than
CONNECTIONS the oldest of the address that has most: nobody keeps a balancer's probe out by
connecting and saying nothing, nor by asking and not reading."""

PLACE_SECONDS: Final = 0.1
"""The longest wait for the end of that connection's thread; then the new connection is closed."""

CLOSE_SECONDS: Final = 1.0
"""The time for the thread to see that the port is closed."""

SECONDS: Final = 5.0
"""The time limit of a whole request and its answer."""

HEAD_BYTES: Final = 16 * 1024
"""The longest request."""

IP_FREEBIND: Final = 15
"""ip(7), for both families; the socket module has no name for it."""

AGAIN_SECONDS: Final = 1.0
"""The pause before the next try to listen where the system refuses it."""

NO_FILES_SECONDS: Final = 0.1
"""The pause before the next try to accept a connection when the process has no file left for it."""

TEXT: Final = "text/plain; charset=utf-8"
Page: TypeAlias = tuple[int, str, bytes]
"""The status, the content type and the body."""


class StatusServer:
    """Listens and answers until it is closed: a GET or HEAD a connection, each in its own thread.

    Port 0 is any free one; `name` is the answers' header Server. Any thread calls `page`, which
    returns a page by its path, None where there is none. Its second argument is the Host, `b""`
    without one, of a question from this machine's own address: from any user of it, or from anybody
    through a proxy, a tunnel or a browser on it. None of a question from elsewhere.

    With `when_free` a port that cannot be listened on is tried again until it can; a thread then
    calls `when_free`. Without it the OSError is raised. The same thread listens again where the
    interface that the address names was made again.
    """

    def __init__(
        self,
        address: tuple[str, int],
        page: Callable[[str, bytes | None], Page | None],
        *,
        name: str,
        when_free: Callable[[], None] | None = None,
    ) -> None:
        self._address = address
        self._when_free = when_free
        self._socket: socket.socket | None = None
        self.is_late = False
        """True while the machine lacks the address."""
        self.waits_for = ""
        """Why it could not listen at once; `""` if it could."""
        try:
            self._socket, self.is_late = listening(address, CONNECTIONS, dual=True)
        except OSError as error:
            if when_free is None:
                raise
            self.waits_for = error.strerror or str(error)
        self.number = int(self._socket.getsockname()[1]) if self._socket else address[1]
        """The port that it listens on."""
        self._page = page
        self._name = name
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        self._open: dict[socket.socket, str] = {}
        """The address of each connection, oldest first; a thread takes out its own."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._closed.set()
        if (own := self._socket) is not None:
            with contextlib.suppress(OSError):  # not every system can
                own.shutdown(socket.SHUT_RDWR)  # so that the thread wakes up
        self._thread.join(CLOSE_SECONDS)
        if self._socket is not None:
            self._socket.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            if self._socket is None:
                if not self._closed.wait(AGAIN_SECONDS):
                    self._listen_again()
                continue
            if "%" in self._address[0]:
                self._socket.settimeout(AGAIN_SECONDS)
            try:
                connection, (address, *_) = self._socket.accept()
            except OSError as error:
                if is_lost(self._socket, self._address[0]):
                    self._socket.close()
                    self._socket = None
                elif not isinstance(error, TimeoutError):
                    self._closed.wait(NO_FILES_SECONDS)
                continue
            if not self._has_place(address):
                connection.close()
                continue
            self._open[connection] = address
            try:
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            except RuntimeError:  # the system gives no more threads
                self._leave(connection)
                connection.close()

    def _listen_again(self) -> None:
        with contextlib.suppress(OSError):
            self._socket, _ = listening(self._address, CONNECTIONS, dual=True)
            if self._when_free is not None:
                self._when_free()

    def _has_place(self, address: str) -> bool:
        """Take a place for a connection of an address; end another where that one has too many."""
        places = self._open.copy()  # one step: threads take out their own at any time
        counts = Counter(places.values())
        crowd = address if counts[address] >= SHARE else ""
        if not crowd and counts.total() >= CONNECTIONS:
            crowd = max(counts, key=counts.__getitem__)
        if crowd:
            oldest = next(each for each, of in places.items() if of == crowd)
            self._open.pop(oldest, None)
            with contextlib.suppress(OSError):  # it has ended by itself
                oldest.shutdown(socket.SHUT_RDWR)
        return self._places.acquire(timeout=PLACE_SECONDS)

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):  # a caller may hang up
                until = clock.monotonic() + SECONDS
                # No connection from another machine has one address at both its ends.
                own = connection.getpeername()[0] == connection.getsockname()[0]
                http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
                request = _request(http, connection, until)
                is_head = request is not None and request.method == b"HEAD"
                page = self._answer_to(request, own=own)
                answer = _respond(http, page, self._name, is_head=is_head)
                connection.settimeout(max(0.1, until - clock.monotonic()))
                connection.sendall(answer)
        finally:
            self._leave(connection)

    def _leave(self, connection: socket.socket) -> None:
        self._open.pop(connection, None)
        self._places.release()

    def _answer_to(self, request: h11.Request | None, *, own: bool) -> Page:
        if request is None:
            return 400, TEXT, b"Bad request\n"
        if request.method not in {b"GET", b"HEAD"}:
            return 405, TEXT, b"Method not allowed\n"
        path = request.target.decode("ascii").partition("?")[0]
        host = dict(request.headers).get(b"host", b"") if own else None
        return self._page(path, host) or (404, TEXT, b"Not found\n")


def listening(
    address: tuple[Any, ...], backlog: int, *, dual: bool = False
) -> tuple[socket.socket, bool]:
    """Return a socket that listens, and whether the machine still lacks the address.

    Where the system can, an address that comes later, such as one of a DHCP lease, of a bridge or
    of keepalived, is listened on in advance; one that names an interface only once there is that
    one (ENODEV). With `dual` a socket of IPv6 takes IPv4 too.
    """
    six = ":" in address[0]
    if "%" in address[0]:
        address = (address[0].partition("%")[0], address[1], 0, interface(address[0]))
    family = socket.AF_INET6 if six else socket.AF_INET
    dual = dual and six and socket.has_dualstack_ipv6()
    try:
        made = socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=dual)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or sys.platform != "linux":
            raise
    else:
        return made, False
    made = socket.socket(family)
    try:
        made.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if six:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        made.bind(address)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made, True


def interface(address: str) -> int:
    """Return the index of the interface that an address names, as `fe80::1%br0`; 0 for none.

    OSError (ENODEV) while no interface has that name.
    """
    zone = address.partition("%")[2]
    if not zone or zone.isdigit():
        return int(zone or 0)
    try:
        return socket.if_nametoindex(zone)
    except OSError as error:
        raise OSError(errno.ENODEV, f"there is no interface {zone}") from error


def is_lost(listening: socket.socket, address: str) -> bool:
    """Return True if the interface of a socket's address has gone, or was made again.

    The socket stays with the index that the interface had, and nobody can connect to it any more.
    """
    try:
        name = listening.getsockname()
        index = name[3] if listening.family == socket.AF_INET6 else 0
        return bool(index) and interface(address) != index
    except OSError:
        return True


def _request(http: h11.Connection, connection: socket.socket, until: float) -> h11.Request | None:
    """Return the request; None if it is invalid. An OSError ends it: too late, or cut off."""
    while True:
        try:
            event = http.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            raise ConnectionError
        left = until - clock.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        http.receive_data(connection.recv(HEAD_BYTES))


def _respond(http: h11.Connection, page: Page, server: str, *, is_head: bool) -> bytes:
    status, kind, body = page
    headers = {
        "Server": server,
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
    } | ({"Allow": "GET, HEAD"} if status == 405 else {})
    head = http.send(h11.Response(status_code=status, headers=list(headers.items()))) or b""
    return head + (b"" if is_head else http.send(h11.Data(data=body)) or b"")


METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `metrics_page`."""

Labels: TypeAlias = tuple[tuple[str, str], ...]

DECIMALS: Final = 3
"""The decimals of fractions: milliseconds. No digit before the point is left out, for rates of
counters."""

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def metrics_page(
    prefix: str, helps: Mapping[str, str], families: Mapping[str, Mapping[Labels, float]]
) -> bytes:
    """Return metrics as text: each family's values by their labels, with its help by its name.

    The name of a counter ends in `_total`; the prefix stands before all names.
    """
    lines = [
        line
        for name, values in families.items()
        for line in _family(prefix + name, helps[name], values)
    ]
    return ("\n".join(lines) + "\n").encode()


def _family(name: str, help_: str, values: Mapping[Labels, float]) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
    for labels, value in values.items():
        yield f"{name}{_labels(labels)} {round(value, DECIMALS)}"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    told = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{told}}}" if told else ""
