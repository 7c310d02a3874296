"""A request: a method, headers, a body made from a template. No proxy, no redirect."""

import contextlib
import http.client
import socket
import ssl
import urllib.parse
from pathlib import Path
from typing import Final

from forewarn.agent.actions.work import Cut, Failed, Work
from forewarn.agent.steps import Http as Terms

ANSWER_SECONDS: Final = 30.0
"""For one answer, where the action has more time than that."""

ANSWER_BYTES: Final = 64 * 1024
"""How much of an answer is read: only its beginning is said."""

SHOWN: Final = 200
"""How much of an answer is said, in characters."""

SECRET_BYTES: Final = 64 * 1024
"""The largest file that a header's value is read from."""


class Http:
    """Sends one request to prepare, and another to undo it.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def prepare(self, work: Work) -> str:
        """Send the request."""
        return self._send(self._terms.method, self._terms.url, self._terms.body, work)

    def recover(self, work: Work) -> str:
        """Send the request that undoes it, if there is one."""
        if not self._terms.undo_url:
            return ""
        return self._send(
            self._terms.undo_method, self._terms.undo_url, self._terms.undo_body, work
        )

    def _send(self, method: str, url: str, template: str, work: Work) -> str:
        parts = urllib.parse.urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        body = work.filled(template).encode() if template else None
        headers = self._headers()
        seconds = max(0.1, min(ANSWER_SECONDS, work.seconds_left))
        connection = _connection(parts, seconds)
        try:
            with work.ending(lambda: _hang_up(connection)):
                connection.request(method, target, body, headers)
                answer = connection.getresponse()
                said = answer.read(ANSWER_BYTES).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            if work.stopped:
                raise Cut from error
            message = f"{method} {url} failed: {str(error) or type(error).__name__}"
            raise Failed(message) from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            message = f"{method} {url} was answered {answer.status}: {said[:SHOWN]}"
            raise Failed(message)
        return f"answered {answer.status}"

    def _headers(self) -> dict[str, str]:
        headers = dict(self._terms.headers)
        for name, file in self._terms.header_files.items():
            try:
                with Path(file).open("rb") as opened:
                    headers[name] = opened.read(SECRET_BYTES).decode("latin-1").strip()
            except OSError as error:
                message = f"the value of {name} in {file} cannot be read: {error.strerror}"
                raise Failed(message) from error
        return headers


def _connection(parts: urllib.parse.SplitResult, seconds: float) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, parts.port, timeout=seconds, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=seconds)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """End what waits for an answer, from another thread: a close alone would not wake it."""
    held = connection.sock
    if held is not None:
        with contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)
