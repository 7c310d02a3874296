"""HTTP without the socket, over h11: bytes out, bytes in, with a limit on all that is read.

No proxy is ever asked and no redirect followed: the metadata service is one hop away, and what
answers in its place is not it.
"""

from typing import Final

import h11

from forewarn.client.answers import Failure
from forewarn.client.discovery import Endpoint
from forewarn.client.terms import Ask
from forewarn.protocol.message import Reply
from forewarn.version import __version__

MAX_HEAD_BYTES: Final = 16 * 1024
"""Of an answer's status line and headers: the usual limit."""

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Of an answer's body: ten thousand events."""

MAX_INTERIM: Final = 8
"""Interim answers (1xx) before the one that counts: a server has reason for one at most."""

READ_BYTES: Final = 64 * 1024
"""What a shell reads at once."""

USER_AGENT: Final = f"Forewarn/{__version__}".encode()


class Broken(Exception):  # noqa: N818 - between a shell and here; callers never see it
    """No answer comes on this connection any more.

    Args:
        failure: Why.
        stale: Whether the connection had served before and ended before any part of an answer
            came, as one does that the server closed meanwhile: the question may be asked again.
    """

    def __init__(self, failure: Failure, *, stale: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.stale = stale


class Exchange:
    """One connection's questions and answers.

    Args:
        endpoint: Whom it is to.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._answered = 0
        self._forget()

    def _forget(self) -> None:
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._interim = 0
        self._began = False

    @property
    def fresh(self) -> bool:
        """Whether no answer has come on it yet."""
        return self._answered == 0

    def ask(self, ask: Ask) -> bytes:
        """Return a question's bytes; headers that hold on this connection only if it is not fresh.

        It must be reusable, and the answer before be taken.
        """
        headers = [
            (b"Host", self.endpoint.authority.encode()),
            (b"Metadata", b"true"),
            (b"User-Agent", USER_AGENT),
            (b"Accept", b"*/*"),
        ]
        if not self.fresh:
            headers.extend(ask.held)
        if ask.method == b"POST":
            headers.append((b"Content-Type", b"application/json"))
            headers.append((b"Content-Length", b"%d" % len(ask.body)))
        target = (self.endpoint.prefix + ask.path).encode()
        parts = [h11.Request(method=ask.method, target=target, headers=headers)]
        sent = b"".join(self._h11.send(part) or b"" for part in parts)
        if ask.body:
            sent += self._h11.send(h11.Data(data=ask.body)) or b""
        return sent + (self._h11.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> Reply | None:
        """Take what was read; return the answer once it is whole.

        Args:
            data: `b""` where the server has closed.

        Raises:
            Broken: It is no answer, is over a limit, or was cut off.
        """
        self._began = self._began or bool(data)
        if not self._began:
            raise self.cut("the server closed the connection without an answer")
        try:
            self._h11.receive_data(data)
            return self._read(ended=not data)
        except h11.RemoteProtocolError as error:
            if not data:
                raise self.cut(
                    "the server closed the connection in the middle of an answer"
                ) from error
            reason = "too-large" if error.error_status_hint == 431 else "no-http"
            message = f"what answers does not speak HTTP as expected: {error}"
            raise _broken(reason, message) from error

    def _read(self, *, ended: bool) -> Reply | None:
        while True:
            part = self._h11.next_event()
            if part is h11.NEED_DATA or part is h11.PAUSED:
                return None
            if isinstance(part, h11.InformationalResponse):
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise _broken("no-http", "the server sends interim answers without end")
            elif isinstance(part, h11.Response):
                self._head = part
            elif isinstance(part, h11.Data):
                self._body += part.data
                if len(self._body) > MAX_BODY_BYTES:
                    message = f"the answer is longer than {MAX_BODY_BYTES} bytes"
                    raise _broken("too-large", message)
            elif isinstance(part, h11.EndOfMessage):
                return self._whole()
            elif ended:
                raise self.cut("the server closed the connection without an answer")

    def _whole(self) -> Reply:
        assert self._head is not None  # h11 ends no message that did not begin
        headers = tuple(self._head.headers)
        reply = Reply(self._head.status_code, bytes(self._body), headers)
        for name, value in headers:
            if name == b"content-encoding" and value.lower() != b"identity":
                shown = value.decode("ascii", "replace")
                raise _broken("encoded", f"the answer is encoded as {shown!r}, without being asked")
        self._forget()
        self._answered += 1
        return reply

    def reuse(self) -> bool:
        """Make ready for the next question; tell whether the connection may have one."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        if self._h11.trailing_data[0]:
            return False  # what nobody asked for is not to be taken for the next answer
        self._h11.start_next_cycle()
        return True

    def cut(self, message: str) -> Broken:
        """Return what an end of the connection means now."""
        failure = Failure(reason="cut", message=message)
        return Broken(failure, stale=not self.fresh and not self._began)


def _broken(reason: str, message: str) -> Broken:
    return Broken(Failure(reason=reason, message=message, answered=True))


def no_connection(endpoint: Endpoint, error: Exception) -> Failure:
    """Return the failure of a connection that could not be made."""
    message = f"no connection to {endpoint}: {str(error) or type(error).__name__}"
    return Failure(reason="no-connection", message=message)


def no_answer(endpoint: Endpoint, seconds: float) -> Failure:
    """Return the failure of an answer that did not come in its time."""
    message = f"no answer from {endpoint} in {seconds:g} s"
    return Failure(reason="no-answer", message=message)
