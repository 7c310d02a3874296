"""A server on a real socket that says what a test scripts, connection by connection.

It is for what no real endpoint says: silence, resets, half answers, wrong bytes, documents that the
rules never make. Where a real endpoint will do, a test has the emulator and its faults.
"""

import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import msgspec
import pytest

import patience
from forewarn.client.session import Pace

QUICK = Pace(
    first_answer_seconds=2 * patience.SECONDS,
    answer_seconds=2 * patience.SECONDS,
    connect_seconds=patience.SECONDS,
    poll_seconds=0.02,
    wait_seconds=1,
    backoff_seconds=0.01,
    longest_backoff_seconds=0.05,
    longest_retry_after_seconds=0.05,
    approve_seconds=patience.SECONDS,
)
"""A client's pauses, made short. It waits for an answer for longer than a test waits for it."""


class Talk:
    """One connection as a script sees it."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.connection = connection
        self.number = number
        self._read = b""

    def request(self) -> "Asked | None":
        """Read one whole request; None where the client hung up."""
        while b"\r\n\r\n" not in self._read:
            if not self._more():
                return None
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._read) < length:
            if not self._more():
                return None
        body, self._read = self._read[:length], self._read[length:]
        return Asked(method, target, headers, body)

    def _more(self) -> bool:
        try:
            data = self.connection.recv(65536)
        except OSError:
            return False
        self._read += data
        return bool(data)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(data)

    def answer(self, status: int = 200, body: Any = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.send(message(status, content, **headers))

    def close(self) -> None:
        """Close at once, without a word."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def reset(self) -> None:
        """Close so that the client gets a reset."""
        with contextlib.suppress(OSError):  # the server's end has closed it
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1" + 7 * b"\0")
        self.connection.close()


class Asked(msgspec.Struct, frozen=True):
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def message(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Any", *(f"{n.replace('_', '-')}: {v}" for n, v in headers.items())]
    if status != 304 and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def document(*events: dict[str, Any], incarnation: int = 1) -> bytes:
    return msgspec.json.encode({"DocumentIncarnation": incarnation, "Events": list(events)})


class Scripted:
    """Serves each connection in a thread by what a test gives; keeps what was asked.

    Args:
        script: Called with each new connection; what it returns from closes it.
        port: Where it listens; 0 is any free port.
        address: Its own.
    """

    def __init__(
        self, script: Callable[[Talk], None], port: int = 0, address: str = "127.0.0.1"
    ) -> None:
        self._script = script
        self._listening = socket.create_server((address, port))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://{address}:{self.port}"
        self.errors: list[BaseException] = []
        self.connections = 0
        self._open: list[Talk] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if error.errno == errno.EMFILE:  # a test takes the files away for a while
                    continue
                return
            self.connections += 1
            talk = Talk(connection, self.connections)
            self._open.append(talk)
            thread = threading.Thread(target=self._serve, args=(talk,), daemon=True)
            thread.start()
            self._threads.append(thread)  # started first: who waits for it may be looking

    def _serve(self, talk: Talk) -> None:
        try:
            self._script(talk)
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self.errors.append(error)
        finally:
            talk.close()

    def everyone_left(self) -> bool:
        """Wait until every client has hung up; tell whether they all did in time.

        One that was not accepted yet when its client left may still be added meanwhile.
        """
        while alive := [thread for thread in self._threads[1:] if thread.is_alive()]:
            alive[0].join(patience.SECONDS)
            if alive[0].is_alive():
                return False
        return True

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads[:1]:
            thread.join(patience.SECONDS)  # from then on none is added
        for talk in self._open:
            talk.close()
        for thread in self._threads:
            thread.join(patience.SECONDS)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]


class Silent(Scripted):
    """A server that takes requests and never answers; `asked` says that one came."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self.asked = threading.Event()

    def _take(self, talk: Talk) -> None:
        talk.request()
        self.asked.set()
        talk.request()


class Keeping(Scripted):
    """A web server that keeps what it was asked and answers as it is told."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.asked: list[Asked] = []
        self.status = 200
        self.tls: ssl.SSLContext | None = None
        self.arrived, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def _answer(self, talk: Talk) -> None:
        if self.tls is not None:
            try:
                talk.connection = self.tls.wrap_socket(talk.connection, server_side=True)
            except OSError:
                return  # a client that does not trust the certificate hangs up
        while (asked := talk.request()) is not None:
            self.asked.append(asked)
            self.arrived.set()
            self.goes_on.wait(patience.SECONDS)
            talk.answer(self.status, b"said")

    def __exit__(self, *error: object) -> None:
        self.goes_on.set()
        super().__exit__(*error)


def serving(
    answers: Callable[[Asked, int], bytes], port: int = 0, address: str = "127.0.0.1"
) -> Scripted:
    """A server that answers each request with what a function returns; `b""` closes.

    The function gets the request and its number, from 1, over all connections.
    """
    numbers = iter(range(1, 1_000_000))

    def script(talk: Talk) -> None:
        while (asked := talk.request()) is not None:
            said = answers(asked, next(numbers))
            if not said:
                return
            talk.send(said)

    return Scripted(script, port, address)


@contextlib.contextmanager
def losing() -> Iterator[tuple[str, int]]:
    """Give an address whose connections are never answered: the system drops what comes there."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(4):  # a full queue takes no more
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        yield full.getsockname()


@contextlib.contextmanager
def without_files() -> Iterator[None]:
    """Let this process open nothing."""
    resource = pytest.importorskip("resource")  # Windows has none
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """Let no thread begin: each asks for more memory than there is."""
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=int).start()
        yield
    finally:
        threading.stack_size(before)
