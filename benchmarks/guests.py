"""Guests that this process plays: each a connection from its own machine's address."""

import contextlib
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable

IP_BIND_ADDRESS_NO_PORT = 24
"""ip(7): the port is chosen at connect, so that each address has all of them for each target."""

ANSWER_SECONDS = 90.0
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


def connected(
    port: int, address: str, *, host: str = "127.0.0.1", receive_bytes: int = 0, waits: bool = True
) -> socket.socket:
    """Return a connection to the service.

    Args:
        port: Where it listens.
        address: Where the connection comes from.
        host: The address that it listens on.
        receive_bytes: The size of its receive buffer; 0 for what the system gives.
        waits: Whether it is there already; else nothing of it ever blocks.
    """
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(ANSWER_SECONDS if waits else 0)
    made.bind((address, 0))
    with contextlib.suppress(BlockingIOError):
        made.connect((host, port))
    return made


def get(*headers: str) -> bytes:
    """Return a GET of the events."""
    lines = [f"GET {EVENTS} HTTP/1.1", "Host: 169.254.169.254", "Metadata: true", *headers, "", ""]
    return "\r\n".join(lines).encode()


class Guests:
    """Machines that keep a connection each, one request on it at a time.

    Where the service closes a connection, its machine opens the next and asks again.

    Args:
        port: Where the service listens.
        addresses: Of the machines.
        host: The address that the service listens on.
    """

    def __init__(self, port: int, addresses: Iterable[str], *, host: str = "127.0.0.1") -> None:
        self.statuses: Counter[str] = Counter()
        """Of all answers, and `closed` for each connection that ended without one."""
        self.seconds: list[float] = []
        """Of each answer, from the request's last byte sent to the answer's last received."""
        self.heard: Callable[[str, str, bytes], None] | None = None
        """Is told of each answer: the machine's address, the status and the body."""
        self._poll = select.epoll()
        self._place = (host, port)
        self._sockets: dict[int, socket.socket] = {}
        for address in addresses:
            self._connect(address)

    def _connect(self, address: str) -> int:
        host, port = self._place
        made = connected(port, address, host=host)
        self._sockets[made.fileno()] = made
        self._poll.register(made, select.EPOLLIN)
        return made.fileno()

    def _reconnect(self, file: int) -> int:
        closed = self._sockets.pop(file)
        address: str = closed.getsockname()[0]
        closed.close()
        return self._connect(address)

    def close(self) -> None:
        for each in self._sockets.values():
            with contextlib.suppress(OSError):
                each.close()
        self._poll.close()

    def ask(self, count: int, *, each_seconds: float = 0.0, request: bytes = b"") -> None:
        """Let them ask so often in all, and wait for every answer.

        Args:
            count: How many requests, dealt evenly.
            each_seconds: The time from one request of a machine to its next; 0 for at once.
            request: What they send; a plain GET if left out.
        """
        request = request or get()
        began = time.perf_counter()
        spacing = each_seconds / len(self._sockets)
        due = [(began + n * spacing, file) for n, file in enumerate(self._sockets)]
        due.reverse()  # the next one is the last
        sent: dict[int, float] = {}
        left = count
        heard = 0
        while heard < count:
            now = time.perf_counter()
            while due and left and due[-1][0] <= now:
                _, file = due.pop()
                with contextlib.suppress(OSError):  # it is closed, as `_hear` finds
                    self._sockets[file].send(request)
                sent[file] = time.perf_counter()
                left -= 1
            wait = max(0.0, due[-1][0] - time.perf_counter()) if due and left else ANSWER_SECONDS
            heard_now = self._poll.poll(wait)
            assert heard_now or left, "an answer did not come"
            for file, _ in heard_now:
                try:
                    self._hear(file)
                except ConnectionError:
                    again = self._reconnect(file)
                    due = [(at, again if each == file else each) for at, each in due]
                    if file in sent:
                        self.statuses["closed"] += 1
                        sent[again] = sent.pop(file)
                        self._sockets[again].send(request)
                    continue
                now = time.perf_counter()
                heard += 1
                asked = sent.pop(file)
                self.seconds.append(now - asked)
                due.insert(0, (max(now, asked + each_seconds), file))

    def _hear(self, file: int) -> None:
        data = self._more(file)
        while b"\r\n\r\n" not in data:
            data += self._more(file)
        head, _, body = data.partition(b"\r\n\r\n")
        status = head[9:12].decode()
        if status != "304":
            at = head.index(b"Content-Length: ") + 16
            length = int(head[at:].partition(b"\r\n")[0])
            while len(body) < length:
                body += self._more(file)
        self.statuses[status] += 1
        if self.heard is not None:
            self.heard(self._sockets[file].getsockname()[0], status, body)

    def _more(self, file: int) -> bytes:
        data = self._sockets[file].recv(65536)
        if not data:
            raise ConnectionResetError
        return data
