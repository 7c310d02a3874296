"""The operator plane put together, as the service opens, feeds and stops it."""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from forewarn.server import secret_files, sockets
from forewarn.server.operator import application, auth, connections
from forewarn.server.operator.metrics import OperationMetrics
from forewarn.server.operator.routing import Backend
from forewarn.server.operator.table import RouteTable
from forewarn.server.page.routes import PageContext
from forewarn.settings import OFF, split_address

Served: TypeAlias = tuple[str, Coroutine[Any, Any, None]]
"""The address of a socket, and what serves it."""


class OperatorPlane:
    """The API and the page on their sockets. Made and used on the event loop.

    `mint` makes the ids of requests, and `process` is another text for each process. With `anyone`
    nobody needs a token: that is whose each request is. `more` has routes beside the service's.
    """

    def __init__(
        self,
        backend: Backend,
        mint: Callable[[], str],
        process: str,
        handed_over: sockets.HandedOver,
        *,
        anyone: auth.OperatorAccount | None = None,
        more: RouteTable | None = None,
    ) -> None:
        self.backend = backend
        self.counted: Final = OperationMetrics(backend.inventory)
        self._settings = backend.settings.operator
        audit, real = auth.AuditLog(backend.plane, backend.real), backend.real
        self._auth_context = auth.AuthContext(
            audit, backend.clock, real, mint, self._settings.has_page, backend.accounts
        )
        self.page = (
            PageContext(backend, self._auth_context, process)
            if self._auth_context.has_page
            else None
        )
        self._application = application.application(backend, self.page, more)
        self._anyone = anyone
        self._handed_over = handed_over
        self._reached = connections.ReachedLimits()
        self._servers: list[connections.Server] = []
        self.certificate = secret_files.Certificate(
            self._settings.tls_certificate, self._settings.tls_key, "operator.tls_certificate"
        )
        self._unix: Path | None = None
        """The unix socket that this process made, and so removes."""
        own = self.counted.collectors, (self._reached.counter,), self._auth_context.collectors
        backend.collectors.extend(itertools.chain(*own))

    def open(self) -> Iterator[Served]:
        """Open the sockets one by one.

        SocketUnusable, or SecretUnusable for the token or the certificate, if that is not possible.
        """
        wanted = self._settings
        if wanted.socket != OFF:
            path = Path(wanted.socket)
            unix = self._handed_over.take(sockets.unix_address(path))
            if unix is None:
                unix, self._unix = sockets.open_unix(path, wanted.socket_group), path
            yield self._serve(f"unix:{wanted.socket}", unix, None)
        if wanted.listen:
            self.read_token()
            self.certificate.read()
            host, port = split_address(wanted.listen)
            tcp = self._handed_over.take(sockets.tcp_address(host, port))
            tcp = tcp or sockets.open_tcp(host, port)
            scheme = self.certificate.scheme
            shown = sockets.shown(host, tcp.getsockname()[1])
            if self.page is not None:
                url = sockets.url_for_browsers(scheme, host, tcp, wanted.hosts)
                self.backend.page_url = url
            yield self._serve(f"{scheme}://{shown}", tcp, (host, *wanted.hosts))

    def _serve(self, address: str, opened: socket.socket, hosts: tuple[str, ...] | None) -> Served:
        gate = auth.AuthMiddleware(
            self._application, self._auth_context, hosts, anyone=self._anyone
        )
        tls = self.certificate.context if address.startswith("https:") else None
        server = connections.Server(gate, self._reached, tls=tls)
        self._servers.append(server)
        return address, server.serve([opened])

    def read_token(self) -> None:
        """Read the token file, and accept its token from now on.

        Raises:
            SecretUnusable: The file cannot be used.
        """
        if self._settings.listen and self._anyone is None:
            path = Path(self._settings.token_file)
            credentials = os.environ.get("CREDENTIALS_DIRECTORY", "")
            self._auth_context.accounts.let_in_by_file(secret_files.token(path, credentials))

    def end_streams(self) -> None:
        """End the answers that have no end."""
        self.backend.news.close()
        if self.page is not None:
            self.page.live.close()

    async def drain(self, seconds: float) -> None:
        """Make each answer the last of its connection, until none is idle or the time is over."""
        await asyncio.gather(*(server.drain(seconds) for server in self._servers))

    def stop(self) -> None:
        """End what `open` returned."""
        for server in self._servers:
            server.should_exit = True

    def close(self) -> None:
        """Remove the unix socket of this process, and end the threads for operators."""
        self.backend.close()
        if self._unix is not None:
            sockets.remove(self._unix)
        if self.page is not None:
            self.page.renderer.close()
