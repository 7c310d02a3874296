"""A receiver of webhooks: a real server on a port of this machine, as anybody would write one."""

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from standardwebhooks import Webhook as Verifier

import patience


class Received(msgspec.Struct, frozen=True):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified_by(self, secret: str) -> Any:
        return Verifier(secret).verify(self.body, self.headers)


class Receiver:
    """Keeps what it gets; `answers` says how it answers at a path, 204 where nothing is said."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.scheme = "http"
        self.answers: dict[str, Callable[[http.server.BaseHTTPRequestHandler], None]] = {}
        self.over = threading.Event()
        """Set at the end, for whoever keeps a request waiting until then."""
        self._got: list[Received] = []
        self._lock = threading.Lock()

    def url(self, path: str = "/hook") -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def got(self, path: str = "/hook") -> list[Received]:
        with self._lock:
            return [one for one in self._got if one.path == path]

    def awaited(self, count: int, path: str = "/hook") -> list[Received]:
        """Return what has come at a path, once it is so many."""
        return patience.until(
            lambda: found if len(found := self.got(path)) >= count else None, lambda: self._got
        )

    def take(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            self._got.append(Received(handler.path, headers, body))
        self.answers.get(handler.path, answer(204))(handler)


def answer(status: int, **headers: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": "0", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return write


@contextmanager
def receiving(certificate: Path | None = None) -> Iterator[Receiver]:
    """Run a receiver, with TLS where there is a certificate (its key is beside it)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            made.take(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Receiver(server.server_port)
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
            server.socket = tls.wrap_socket(server.socket, server_side=True)
            made.scheme = "https"
        server.daemon_threads = True
        running = threading.Thread(target=server.serve_forever, args=(0.05,))
        running.start()
        try:
            yield made
        finally:
            made.over.set()
            server.shutdown()
            running.join()
