"""Sends an HTTP request: a method, headers, a body made from a template. No proxy, no redirect."""

import socket
from typing import Final

from forewarn.agent import action_settings
from forewarn.agent.action_settings import Body, HttpSettings
from forewarn.agent.actions.action import Action, ActionFailed, ActionStopped, contents, hang_up
from forewarn.client import transport
from forewarn.client.transport import RequestFailed

ANSWER_SECONDS: Final = 30.0
"""For one whole answer, where the action has more time than that."""

SHOWN: Final = 200
"""How much of an answer is shown, in characters."""


class HttpAction(Action[HttpSettings]):
    """Sends one request to prepare, and another to undo it."""

    _socket: socket.socket | None = None
    """The request's, which another thread may shut down."""

    def prepare(self) -> str:
        return self._send(self.settings.method, self.settings.url, self.settings.body)

    def recover(self) -> str:
        settings = self.settings
        return self._send(settings.undo_method, settings.undo_url, settings.undo_body)

    def _send(self, method: str, url: str, template: Body) -> str:
        headers = self._headers()
        body = None
        if template:
            as_json = self.settings.is_json(template)
            body = action_settings.filled(template, self.run.variables(), json=as_json).encode()
            if as_json and not any(name.lower() == "content-type" for name in headers):
                headers["Content-Type"] = "application/json"
        try:
            with self.run.on_stop(lambda: hang_up(self._socket)):
                reply = transport.request(
                    method,
                    url,
                    seconds=max(0.1, min(ANSWER_SECONDS, self.run.seconds_left)),
                    headers=headers.items(),
                    body=body,
                    opened=self._opened,
                )
        except RequestFailed as failed:
            if self.run.stopped:
                raise ActionStopped from failed
            raise ActionFailed(f"{method} {url} failed: {failed}") from failed
        if not 200 <= reply.status < 300:
            said = reply.body[: 4 * SHOWN].decode("utf-8", "replace").strip()
            raise ActionFailed(f"{method} {url} was answered {reply.status}: {said[:SHOWN]}")
        return f"answered {reply.status}"

    def _headers(self) -> dict[str, str]:
        headers = dict(self.settings.headers)
        for name, file in self.settings.header_files.items():
            headers[name] = contents(file).decode("latin-1").strip()
            if not action_settings.is_header_value(headers[name]):
                raise ActionFailed(f"the value of {name} in {file} is not one line of text")
        return headers

    def _opened(self, made: socket.socket) -> None:
        self._socket = made
        if self.run.stopped:
            raise OSError("it was told to stop")
