"""A metadata proxy that signs, drops and translates as OpenStack's agent does.

It knows its guests by their address, passes on the path, the query and the body, and of headers
only its own four; of a good answer it passes back the body and its type, of another the status.
"""

import hashlib
import hmac
import http.client
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import patience

TENANT = "4a5e1b9342c342c7873de76a8a070b83"


class Agent:
    """Serves guests on `address`, and asks `upstream` for them from `address` too."""

    def __init__(
        self,
        address: str,
        upstream: int,
        secret: str,
        guests: Mapping[str, str],
        upstream_host: str = "127.0.0.1",
    ) -> None:
        self.secret = secret
        self._upstream_host = upstream_host
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*agent.ask(address, upstream, self, guests[self.client_address[0]]))

            def do_POST(self) -> None:
                self.do_GET()

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its own name
                del format, args

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def ask(
        self, address: str, upstream: int, request: BaseHTTPRequestHandler, instance: str
    ) -> tuple[int, str, bytes]:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        key = self.secret.encode("utf-8")
        headers = {
            "X-Forwarded-For": request.client_address[0],
            "X-Instance-ID": instance,
            "X-Tenant-ID": TENANT,
            "X-Instance-ID-Signature": hmac.new(key, instance.encode(), hashlib.sha256).hexdigest(),
        }
        there = http.client.HTTPConnection(
            self._upstream_host, upstream, source_address=(address, 0), timeout=patience.SECONDS
        )
        try:
            there.request(request.command, request.path, body=body, headers=headers)
            answer = there.getresponse()
            content = answer.read()
        finally:
            there.close()
        if answer.status == 200:
            return 200, answer.headers.get("Content-Type", "text/plain"), content
        return answer.status, "text/html", b"<html></html>"

    def __enter__(self) -> "Agent":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
