"""A message to people by apprise, which is loaded in a process of its own and ends with it."""

import importlib.util
import sys
from pathlib import Path
from typing import Final

import msgspec

from forewarn.agent.actions import program
from forewarn.agent.actions.work import Failed, Work
from forewarn.agent.steps import Notify as Terms

MESSENGER: Final = "forewarn.agent.actions.messenger"
MISSING: Final = "notify needs apprise: pip install 'forewarn[notify]'"
FILE_BYTES: Final = 64 * 1024
"""The largest file of addresses."""


def installed() -> bool:
    """Tell whether apprise is there, without loading it."""
    return importlib.util.find_spec("apprise") is not None


class Notify:
    """Sends a message for the event, and one for its end.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def prepare(self, work: Work) -> str:
        """Send `body`."""
        return self._send(self._terms.body, work)

    def recover(self, work: Work) -> str:
        """Send `undo_body`, if there is one."""
        return self._send(self._terms.undo_body, work) if self._terms.undo_body else ""

    def _send(self, template: str, work: Work) -> str:
        if not installed():
            raise Failed(MISSING)
        try:
            with Path(self._terms.urls_file).open("rb") as file:
                lines = file.read(FILE_BYTES).decode("utf-8", "replace").splitlines()
        except OSError as error:
            message = f"{self._terms.urls_file} cannot be read: {error.strerror}"
            raise Failed(message) from error
        addresses = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        told = {
            "addresses": addresses,
            "title": work.filled(self._terms.title),
            "body": work.filled(template),
        }
        status, said = program.run(
            [sys.executable, "-m", MESSENGER], work, told=msgspec.json.encode(told)
        )
        if status:
            message = f"the message was not delivered: {said}"
            raise Failed(message)
        return f"told {len(addresses)}"
