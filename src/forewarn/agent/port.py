"""The status port: `/healthz`, `/readyz`, `/status`, `/metrics`; for probes, peers and people.

Each answer comes from what the daemon published last: a probe neither waits for it nor disturbs it.
"""

import contextlib
import http.server
import socket
import threading
from typing import Final, Protocol, TypeAlias

from forewarn import clock
from forewarn.agent import deadline

CONNECTIONS: Final = 64
"""At once: probes and peers ask for milliseconds; who is over it is hung up on."""

CLOSE_SECONDS: Final = 1.0
"""How long the thread may take to see that the port is closed; it keeps no process from ending."""

SECONDS: Final = 5.0
"""For a request to come and its answer to be taken."""


Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""What the library hands on: for TCP always the socket."""


class Shown(Protocol):
    """What the daemon shows."""

    def page(self, path: str, *, own: bool) -> tuple[int, str, bytes] | None:
        """Return the status, the type and the body of a page; None where there is none.

        Args:
            path: Which page.
            own: Whether it is this machine that asks.
        """
        ...


class Port:
    """Listens and answers until it is closed.

    Args:
        address: The address and the port; 0 is any free one.
        shown: What there is to see.

    Raises:
        OSError: The address cannot be listened on.
    """

    def __init__(self, address: tuple[str, int], shown: Shown) -> None:
        self._server = _Server(address, shown)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="port", daemon=True)
        self._thread.start()

    @property
    def number(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        with contextlib.suppress(OSError):  # not every system can
            self._server.socket.shutdown(socket.SHUT_RDWR)  # so that the thread looks up
        self._thread.join(CLOSE_SECONDS)
        self._server.server_close()

    def _serve(self) -> None:
        """Answer one after another; the library's own loop would look up twice a second."""
        while not self._is_closed:
            self._server.handle_request()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], shown: Shown) -> None:
        self.shown = shown
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Page)

    def process_request(self, request: Request, client_address: object) -> None:
        """Answer in a thread, if there is a place for one."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no more threads; whoever asked is hung up on
            self._places.release()
            raise

    def process_request_thread(self, request: Request, client_address: object) -> None:
        """Answer, and give the place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Request, client_address: object) -> None:
        """Say nothing: who hangs up in the middle is no fault of ours."""


class _Page(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = SECONDS
    server_version = "forewarn-agent"
    sys_version = ""

    def setup(self) -> None:
        """Have the whole request come within its time, however slowly its bytes do."""
        super().setup()
        self.rfile.close()
        self.rfile = deadline.reader(self.connection, clock.monotonic() + SECONDS)

    def do_GET(self) -> None:
        """Answer one request."""
        # From no other machine does a connection come that has one address at both its ends.
        own = self.client_address[0] == self.connection.getsockname()[0]
        page = self.server.shown.page(self.path.partition("?")[0], own=own)
        status, kind, body = page or (404, "text/plain; charset=utf-8", b"Not found\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing: a probe a second would fill the log."""
