"""A connection over a socket: asks, waits and pauses, and ends at once when it is closed."""

import contextlib
import os
import selectors
import socket
import threading
from typing import Final

from forewarn import clock
from forewarn.client import http, opening
from forewarn.client.errors import Misuse
from forewarn.client.terms import Ask, Pause, Terms, Turn

_SELECTOR: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Not select where there is better: a process with many files has numbers over its limit."""


class Closed(Exception):  # noqa: N818 - between the lines and the client; the client turns it round
    """The line was closed, maybe by another thread, and waits for nothing any more."""


class Line:
    """One connection at a time to the endpoint, and a bell that ends every wait.

    One thread asks; any thread, and a signal's handler, may close.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._socket: socket.socket | None = None
        self._exchange = http.Exchange(terms.endpoint)
        self._busy = threading.Lock()
        self._closing = False
        self._bell, self._rope = socket.socketpair()

    def do(self, wanted: Ask | Pause) -> Turn:
        """Ask, or pause.

        Raises:
            Closed: The line is closed, or was meanwhile.
            Misuse: Another thread asks on it already.
        """
        if not self._busy.acquire(blocking=False):
            message = "two threads at once: give each its own watch"
            raise Misuse(message)
        try:
            return self._do(wanted)
        except BaseException:
            self._hang_up()
            raise
        finally:
            self._busy.release()
            self._release_if_closing()

    def _do(self, wanted: Ask | Pause) -> Turn:
        if self._closing:
            raise Closed
        if isinstance(wanted, Pause):
            self._wait(None, clock.monotonic() + wanted.seconds)
            return opening.turn(None)
        while True:
            try:
                return self._ask_once(wanted)
            except http.Broken as broken:
                self._hang_up()
                if not broken.stale:  # and a fresh connection never is
                    return opening.turn(broken.failure)

    def close(self) -> None:
        """End every wait at once, and for ever."""
        self._closing = True
        with contextlib.suppress(OSError):  # it is closed already
            self._rope.send(b"!")
        self._release_if_closing()

    def _release_if_closing(self) -> None:
        """Give back what the line holds, unless a thread is using it: it will do so then."""
        if self._closing and self._busy.acquire(blocking=False):
            try:
                self._hang_up()
                self._bell.close()
                self._rope.close()
            finally:
                self._busy.release()

    def __del__(self) -> None:
        """Close what was forgotten."""
        with contextlib.suppress(AttributeError):  # there were no files left to make it of
            self.close()

    def _ask_once(self, ask: Ask) -> Turn:
        if self._exchange.endpoint != self._terms.endpoint:
            self._hang_up()
        connected = self._socket or self._connect()
        held = bool(ask.held) and not self._exchange.fresh
        seconds = ask.answer_seconds + (ask.held_seconds if held else 0.0)
        deadline = clock.monotonic() + seconds
        unsent = memoryview(self._exchange.ask(ask))
        reply = None
        while reply is None:
            if not self._wait(connected, deadline, writing=bool(unsent)):
                raise http.Broken(http.no_answer(self._exchange.endpoint, seconds))
            try:
                if unsent:
                    unsent = unsent[connected.send(unsent) :]
                    continue
                data = connected.recv(http.READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._exchange.cut(f"the connection broke: {error}") from error
            reply = self._exchange.receive(data)
        if not self._exchange.reuse():
            self._hang_up()
        return opening.turn(reply, held=held)

    def _connect(self) -> socket.socket:
        endpoint = self._terms.endpoint
        deadline = clock.monotonic() + self._terms.pace.connect_seconds
        error: OSError = TimeoutError("it was not made in time")
        try:  # a name that has to be looked up is looked up to the end: the system offers no other
            places = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as unknown:  # UnicodeError: a name that no resolver takes
            raise http.Broken(http.no_connection(endpoint, unknown)) from unknown
        for family, kind, protocol, _, place in places:
            try:
                made = self._socket = socket.socket(family, kind, protocol)
                made.setblocking(False)  # noqa: FBT003 - the socket module takes it so
                with contextlib.suppress(BlockingIOError):
                    made.connect(place)
                if self._wait(made, deadline, writing=True):
                    failed = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not failed:
                        opening.tune(made)
                        self._exchange = http.Exchange(endpoint)
                        return made
                    error = OSError(failed, os.strerror(failed))
            except OSError as refused:
                error = refused
            self._hang_up()
        raise http.Broken(http.no_connection(endpoint, error)) from error

    def _wait(
        self, connected: socket.socket | None, deadline: float, *, writing: bool = False
    ) -> bool:
        """Wait until a socket is ready, or a time; tell whether it is.

        Args:
            connected: The socket; None to wait for the time alone.
            deadline: By the monotonic clock.
            writing: Whether to wait until it takes bytes, and not until it has some.

        Raises:
            Closed: The bell rang.
        """
        with _SELECTOR() as selector:
            bell = selector.register(self._bell, selectors.EVENT_READ)
            if connected is not None:
                wanted = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
                selector.register(connected, wanted)
            seconds = 0.0 if self._closing else max(0.0, deadline - clock.monotonic())
            ready = selector.select(seconds)
            if self._closing or any(key is bell for key, _ in ready):
                raise Closed
            return bool(ready)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
