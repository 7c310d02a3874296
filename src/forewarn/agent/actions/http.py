"""HTTP requests, and messages to chats, webhooks or, by apprise in a process of its own, people.

A request has a method, headers and a body made from a template. It follows no redirect, and goes
through the proxy that the agent's environment names.
"""

import importlib.util
import os
import socket
import sys
import urllib.parse
from collections.abc import Mapping
from typing import Final

import msgspec

from forewarn.agent import rules
from forewarn.agent.actions import program
from forewarn.agent.actions.action import (
    Action,
    ActionFailed,
    ActionRun,
    ActionStopped,
    contents,
    hang_up,
)
from forewarn.agent.rules import Body, HttpSettings, NotifySettings
from forewarn.client import proxies, transport
from forewarn.client.transport import RequestFailed

ANSWER_SECONDS: Final = 30.0
"""The time limit of one whole answer, where the action has more time than that."""

BODILESS: Final = frozenset({"GET", "DELETE"})
"""The methods without a body."""

NOT_SENT: Final = "no-connection"
NOT_NOW: Final = frozenset({429, 503})
"""Answers of a server that has done nothing, and asks for another try."""

CARD_VERSION: Final = "1.4"
"""The version of Adaptive Cards that every client of Teams draws."""

SHOWN: Final = 200

PARTLY: Final = 3
"""The exit status of `main` that says so: another try would tell the others again."""


def send(
    run: ActionRun,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    shown: str = "",
    once: bool = False,
) -> str:
    """Send one request; return a word for the log. Any status but 2xx raises ActionFailed.

    `shown` stands for the URL in messages, where it is a secret. With `once` a failure is final if
    the server may have carried the request out.
    """
    connected: list[socket.socket] = []

    def opened(made: socket.socket) -> None:
        connected.append(made)
        if run.stopped:
            raise OSError("the agent told it to stop")

    try:
        proxy = proxies.chosen(url, os.environ)
    except proxies.BadProxy as error:
        raise ActionFailed(str(error)) from error
    try:
        with run.on_stop(lambda: hang_up(connected[-1] if connected else None)):
            reply = transport.request(
                method,
                url,
                seconds=max(0.1, min(ANSWER_SECONDS, run.seconds_left)),
                headers=headers.items(),
                body=body,
                opened=opened,
                proxy=proxy,
            )
    except RequestFailed as failed:
        final = once and failed.reason != NOT_SENT
        if run.stopped:
            raise ActionStopped(final=final) from failed
        message = f"{method} {shown or url} failed: {failed}"
        raise ActionFailed(message, final=final) from failed
    if not 200 <= reply.status < 300:
        said = reply.body[: 4 * SHOWN].decode("utf-8", "replace").strip()
        message = f"{method} {shown or url} was answered {reply.status}: {said[:SHOWN]}"
        raise ActionFailed(message, final=once and reply.status not in NOT_NOW)
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
        # Some servers refuse a POST that does not say that it has no body (411).
        body = None if method in BODILESS else b""
        if template:
            as_json = self.settings.is_json(template)
            body = rules.filled(template, self.run.variables(), json=as_json).encode()
            if as_json and not any(name.lower() == "content-type" for name in headers):
                headers["Content-Type"] = "application/json"
        once = not self.settings.repeatable and method not in rules.IDEMPOTENT
        return send(self.run, method, url, headers=headers, body=body, once=once)

    def _headers(self) -> dict[str, str]:
        headers = {name: text.strip() for name, text in self.settings.headers.items()}
        for name, file in self.settings.header_files.items():
            headers[name] = contents(file).decode("latin-1").strip()
            if not rules.is_header_value(headers[name]):
                raise ActionFailed(f"the value of {name} in {file} is not one line of text")
        return headers


MODULE: Final = "forewarn.agent.actions.http"
MISSING: Final = "notify's urls_file needs the extra 'notify': pip install '.[notify]' in a clone"


def installed() -> bool:
    """Return True if apprise is installed, without loading it."""
    return importlib.util.find_spec("apprise") is not None


class NotifyAction(Action[NotifySettings]):
    """Sends a message for the event, and one for its end."""

    def prepare(self) -> str:
        return self._send(self.settings.body)

    def recover(self) -> str:
        return self._send(self.settings.undo_body)

    def _send(self, template: str) -> str:
        settings, values = self.settings, self.run.variables()
        title, body = rules.filled(settings.title, values), rules.filled(template, values)
        text = f"{title}\n{body}"
        if settings.slack:
            return self._post(settings.slack, _slack(text))
        if settings.teams:
            return self._post(settings.teams, _teams(text))
        if settings.webhook:
            told = msgspec.json.decode(self.run.document())
            return self._post(settings.webhook, msgspec.json.encode({"text": text, **told}))
        return self._tell_by_apprise(title, body)

    def _post(self, place: str, body: bytes) -> str:
        """Send a body to a URL, or to the URL in a file. It holds a secret, so nothing shows it."""
        is_url = rules.is_url(place)
        url = place if is_url else contents(place).decode("utf-8", "replace").strip()
        if not rules.is_url(url):
            raise ActionFailed(f"{place} does not hold one URL")
        headers = {"Content-Type": "application/json"}
        shown = urllib.parse.urlsplit(url).hostname or ""
        return send(self.run, "POST", url, headers=headers, body=body, shown=shown)

    def _tell_by_apprise(self, title: str, body: str) -> str:
        if not installed():
            raise ActionFailed(MISSING)
        lines = contents(self.settings.urls_file).decode("utf-8", "replace").splitlines()
        addresses = {
            str(number): address
            for number, address in enumerate(map(str.strip, lines), 1)
            if address and not address.startswith("#")
        }
        content = {"addresses": addresses, "title": title, "body": body}
        status, said = program.execute(
            [sys.executable, "-P", "-m", MODULE], self.run, stdin=msgspec.json.encode(content)
        )
        if status == PARTLY:
            raise ActionFailed(f"only the others were told: {said}", final=True)
        if status:
            raise ActionFailed(f"the message was not delivered: {said}")
        return f"told {len(addresses)}"


def main() -> int:
    """Send the message on standard input; return 0 if every address has taken it.

    PARTLY if apprise does not know one of them, and all others have taken it.
    """
    import apprise  # noqa: PLC0415 - an extra, and 30 MB that only this process is to carry

    message = msgspec.json.decode(sys.stdin.buffer.read())
    messenger = apprise.Apprise()
    unknown = [line for line, each in message["addresses"].items() if not messenger.add(each)]
    if unknown:
        sys.stdout.write(f"apprise does not know the address in line {', '.join(unknown)}\n")
    if not len(messenger):
        sys.stdout.write("no address to send to")
        return 1
    if not messenger.notify(title=message["title"], body=message["body"]):
        return 1
    return PARTLY if unknown else 0


if __name__ == "__main__":
    sys.exit(main())


def _slack(text: str) -> bytes:
    # What is between < and > is a link or a mention to Slack.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return msgspec.json.encode({"text": escaped})


def _teams(text: str) -> bytes:
    """Return the body for "When a Teams webhook request is received" in a workflow of Teams."""
    # A card's text is Markdown, which finds nothing of its own here.
    escaped = "".join(f"\\{each}" if each in "\\`*_[]<>#" else each for each in text)
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": CARD_VERSION,
        "body": [{"type": "TextBlock", "text": escaped, "wrap": True}],
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return msgspec.json.encode({"type": "message", "attachments": [attachment]})
