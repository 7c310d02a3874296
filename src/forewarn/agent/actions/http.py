"""Sends an HTTP request: a method, headers, a body made from a template. No proxy, no redirect."""

import contextlib
import socket
from pathlib import Path
from typing import Final

from forewarn.agent import action_settings
from forewarn.agent.action_settings import Body, HttpSettings
from forewarn.agent.actions.action import ActionFailed, ActionRun, ActionStopped
from forewarn.client import transport
from forewarn.client.transport import RequestFailed

ANSWER_SECONDS: Final = 30.0
"""For one whole answer, where the action has more time than that."""

SHOWN: Final = 200
"""How much of an answer is shown, in characters."""

SECRET_BYTES: Final = 64 * 1024
"""The largest file that a header's value is read from."""


class HttpAction:
    """Sends one request to prepare, and another to undo it."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings

    def prepare(self, run: ActionRun) -> str:
        """Send the request."""
        settings = self._settings
        return self._send(settings.method, settings.url, settings.body, run)

    def recover(self, run: ActionRun) -> str:
        """Send the request that undoes it, if there is one."""
        settings = self._settings
        if not settings.undo_url:
            return ""
        return self._send(settings.undo_method, settings.undo_url, settings.undo_body, run)

    def _send(self, method: str, url: str, template: Body, run: ActionRun) -> str:
        headers = self._headers()
        body = None
        if template:
            as_json = self._settings.is_json(template)
            body = action_settings.filled(template, run.variables(), json=as_json).encode()
            if as_json and not any(name.lower() == "content-type" for name in headers):
                headers["Content-Type"] = "application/json"
        connection = _Connection(run)
        try:
            with run.on_stop(connection.hang_up):
                reply = transport.request(
                    method,
                    url,
                    seconds=max(0.1, min(ANSWER_SECONDS, run.seconds_left)),
                    headers=headers.items(),
                    body=body,
                    opened=connection.opened,
                )
        except RequestFailed as failed:
            if run.stopped:
                raise ActionStopped from failed
            message = f"{method} {url} failed: {failed}"
            raise ActionFailed(message) from failed
        if not 200 <= reply.status < 300:
            said = reply.body[: 4 * SHOWN].decode("utf-8", "replace").strip()
            message = f"{method} {url} was answered {reply.status}: {said[:SHOWN]}"
            raise ActionFailed(message)
        return f"answered {reply.status}"

    def _headers(self) -> dict[str, str]:
        headers = dict(self._settings.headers)
        for name, file in self._settings.header_files.items():
            try:
                with Path(file).open("rb") as opened:
                    headers[name] = opened.read(SECRET_BYTES).decode("latin-1").strip()
            except OSError as error:
                message = f"cannot read the value of {name} in {file}: {error.strerror}"
                raise ActionFailed(message) from error
            if not action_settings.is_header_value(headers[name]):
                message = f"the value of {name} in {file} is not one line of text"
                raise ActionFailed(message)
        return headers


class _Connection:
    """The socket of a request, which another thread may shut down: a close would not wake it."""

    def __init__(self, run: ActionRun) -> None:
        self._run = run
        self._socket: socket.socket | None = None

    def opened(self, made: socket.socket) -> None:
        """Keep a socket; refuse it if the action was stopped meanwhile."""
        self._socket = made
        if self._run.stopped:
            message = "it was told to stop"
            raise OSError(message)

    def hang_up(self) -> None:
        """End what waits on it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
