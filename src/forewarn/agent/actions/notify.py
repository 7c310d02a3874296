"""Sends a message through apprise, which is loaded in a process of its own and ends with it."""

import importlib.util
import sys
from typing import Final

import msgspec

from forewarn.agent.action_settings import NotifySettings
from forewarn.agent.actions import program
from forewarn.agent.actions.action import Action, ActionFailed, contents

MODULE: Final = "forewarn.agent.actions.notify"
MISSING: Final = "notify needs apprise: pip install 'forewarn[notify]'"


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
