"""A TCP proxy that a test can stall, cut, slow down, or have lose an answer."""

import contextlib
import socket
import threading


class TcpProxy:
    """Passes connections on to a server of 127.0.0.1, in threads that end with it.

    Args:
        target: The server's port.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0
        """How many answers were lost on purpose."""
        self._delay = 0.0
        self._passing = threading.Event()
        self._passing.set()
        self._refusing = False
        self._ended = threading.Event()
        self._marker = self._after = b""
        self._left = 0
        self._cutting = False
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and all its connections."""
        self._ended.set()
        self._passing.set()
        with contextlib.suppress(OSError):  # this wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def stall(self) -> None:
        """Pass nothing on, and close nothing: a path that has gone dark."""
        self._passing.clear()

    def cut(self) -> None:
        """Close all connections; new ones are passed on."""
        with self._lock:
            links = [*self._links]
        for link in links:
            link.close()

    def refuse(self) -> None:
        """Close all connections, and new ones too, until `heal`."""
        self.refuse_new()
        self.cut()

    def refuse_new(self) -> None:
        """Close new connections until `heal`."""
        self._refusing = True

    def delay(self, seconds: float) -> None:
        """Hold what is sent, in either direction, for so long."""
        self._delay = seconds

    def heal(self) -> None:
        """Pass everything on again, at once."""
        self._refusing, self._delay, self._left = False, 0.0, 0
        self._passing.set()

    def lose_answers(
        self, to: bytes, times: int = 1, *, after: bytes = b"", refuse: bool = False
    ) -> None:
        """Close a connection when the server answers what has these bytes, that often.

        Args:
            to: What is answered.
            times: How often.
            after: What a connection must have sent first, since it sent `to` and from now on.
            refuse: Whether new connections are closed from the first such answer on.
        """
        with self._lock:
            self._marker, self._after, self._left, self._cutting = to, after, times, refuse
            for link in self._links:
                link.primed = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        for each in (client, server):  # while nobody else can close them
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(client, server)
        with self._lock:
            self._links.add(link)
        for source, target, asks in ((client, server, True), (server, client, False)):
            work = (link, source, target, asks)
            threading.Thread(target=self._pass_on, args=work, daemon=True).start()

    def _pass_on(
        self, link: "_Link", source: socket.socket, target: socket.socket, asks: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passing.wait()
                if self._delay:
                    self._ended.wait(self._delay)
                if asks and self._takes(link, data):
                    link.losing = True
                elif not asks and link.losing:
                    self.lost += 1
                    self._refusing = self._refusing or self._cutting
                    break
                target.sendall(data)
        link.close()
        with self._lock:
            self._links.discard(link)

    def _takes(self, link: "_Link", data: bytes) -> bool:
        with self._lock:
            if not self._left:
                return False
            if self._after in data:
                link.primed = True
            if self._marker not in data:
                return False
            taken, link.primed = link.primed, False
            self._left -= taken
            return taken


class _Link:
    """The two sockets of a connection."""

    def __init__(self, *sockets: socket.socket) -> None:
        self.losing = False
        self.primed = False
        self._sockets = sockets

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
