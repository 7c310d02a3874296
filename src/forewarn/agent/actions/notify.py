"""Sends a message to a chat or a webhook, or through apprise in a process of its own."""

import importlib.util
import sys
import urllib.parse
from typing import Final

import msgspec

from forewarn import chat
from forewarn.agent import action_settings
from forewarn.agent.action_settings import NotifySettings
from forewarn.agent.actions import http, program
from forewarn.agent.actions.action import Action, ActionFailed, contents

MODULE: Final = "forewarn.agent.actions.notify"
MISSING: Final = "notify with urls_file needs apprise: pip install 'forewarn[notify]'"


def installed() -> bool:
    """Tell whether apprise is there, without loading it."""
    return importlib.util.find_spec("apprise") is not None


class NotifyAction(Action[NotifySettings]):
    """Sends a message for the event, and one for its end."""

    def prepare(self) -> str:
        return self._send(self.settings.body)

    def recover(self) -> str:
        return self._send(self.settings.undo_body)

    def _send(self, template: str) -> str:
        settings = self.settings
        text = f"{self.run.filled(settings.title)}\n{self.run.filled(template)}"
        if settings.slack:
            return self._post(settings.slack, chat.slack(text))
        if settings.teams:
            return self._post(settings.teams, chat.teams(text))
        if settings.webhook:
            told = msgspec.json.decode(self.run.document())
            return self._post(settings.webhook, msgspec.json.encode({"text": text, **told}))
        return self._tell_by_apprise(template)

    def _post(self, place: str, body: bytes) -> str:
        """Send a body to a URL, or to the URL in a file. It holds a secret, so nothing shows it."""
        is_url = action_settings.is_url(place)
        url = place if is_url else contents(place).decode("utf-8", "replace").strip()
        if not action_settings.is_url(url):
            raise ActionFailed(f"{place} does not hold one URL")
        headers = {"Content-Type": "application/json"}
        shown = urllib.parse.urlsplit(url).hostname or ""
        return http.send(self.run, "POST", url, headers=headers, body=body, shown=shown)

    def _tell_by_apprise(self, template: str) -> str:
        if not installed():
            raise ActionFailed(MISSING)
        lines = contents(self.settings.urls_file).decode("utf-8", "replace").splitlines()
        addresses = [s for s in map(str.strip, lines) if s and not s.startswith("#")]
        content = {
            "addresses": addresses,
            "title": self.run.filled(self.settings.title),
            "body": self.run.filled(template),
        }
        status, said = program.execute(
            [sys.executable, "-m", MODULE], self.run, stdin=msgspec.json.encode(content)
        )
        if status:
            raise ActionFailed(f"the message was not delivered: {said}")
        return f"told {len(addresses)}"


def main() -> int:
    """Send the message on standard input; return 0 if every address has taken it."""
    import apprise  # noqa: PLC0415 - an extra, and 30 MB that only this process is to carry

    message = msgspec.json.decode(sys.stdin.buffer.read())
    messenger = apprise.Apprise()
    for number, address in enumerate(message["addresses"], 1):
        if not messenger.add(address):
            sys.stdout.write(f"apprise does not know the address in line {number}")
            return 1
    if not len(messenger):
        sys.stdout.write("there is no address")
        return 1
    return 0 if messenger.notify(title=message["title"], body=message["body"]) else 1


if __name__ == "__main__":
    sys.exit(main())
