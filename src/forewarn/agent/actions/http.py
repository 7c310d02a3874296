"""Sends an HTTP request: a method, headers, a body made from a template. No proxy, no redirect."""

import socket
from collections.abc import Mapping
from typing import Final

from forewarn.agent import action_settings
from forewarn.agent.action_settings import Body, HttpSettings
from forewarn.agent.actions.action import (
    Action,
    ActionFailed,
    ActionRun,
    ActionStopped,
    contents,
    hang_up,
)
from forewarn.client import transport
from forewarn.client.transport import RequestFailed

ANSWER_SECONDS: Final = 30.0
"""For one whole answer, where the action has more time than that."""

SHOWN: Final = 200
"""How much of an answer is shown, in characters."""


def send(
    run: ActionRun,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    shown: str = "",
) -> str:
    """Send one request; return what to log. What is no success is an ActionFailed.

    `shown` stands for the URL in messages, where it is a secret.
    """
    connected: list[socket.socket] = []

    def opened(made: socket.socket) -> None:
        connected.append(made)
        if run.stopped:
            raise OSError("it was told to stop")

    try:
        with run.on_stop(lambda: hang_up(connected[-1] if connected else None)):
            reply = transport.request(
                method,
                url,
                seconds=max(0.1, min(ANSWER_SECONDS, run.seconds_left)),
                headers=headers.items(),
                body=body,
                opened=opened,
            )
    except RequestFailed as failed:
        if run.stopped:
            raise ActionStopped from failed
        raise ActionFailed(f"{method} {shown or url} failed: {failed}") from failed
    if not 200 <= reply.status < 300:
        said = reply.body[: 4 * SHOWN].decode("utf-8", "replace").strip()
        raise ActionFailed(f"{method} {shown or url} was answered {reply.status}: {said[:SHOWN]}")
    return f"answered {reply.status}"


class HttpAction(Action[HttpSettings]):
    """Sends one request to prepare, and another to undo it."""

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
        return send(self.run, method, url, headers=headers, body=body)

    def _headers(self) -> dict[str, str]:
        headers = dict(self.settings.headers)
        for name, file in self.settings.header_files.items():
            headers[name] = contents(file).decode("latin-1").strip()
            if not action_settings.is_header_value(headers[name]):
                raise ActionFailed(f"the value of {name} in {file} is not one line of text")
        return headers
