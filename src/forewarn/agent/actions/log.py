"""A line of the agent's log, with the event beside it."""

import logging
from typing import Final

from forewarn.agent.actions.work import Work
from forewarn.agent.steps import Log as Terms

LOGGER: Final = logging.getLogger("forewarn.agent.event")
LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Log:
    """Writes a line for the event, and one for its end.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def prepare(self, work: Work) -> str:
        """Write `message`."""
        self._write(self._terms.message, work)
        return ""

    def recover(self, work: Work) -> str:
        """Write `undo_message`, if there is one."""
        if self._terms.undo_message:
            self._write(self._terms.undo_message, work)
        return ""

    def _write(self, template: str, work: Work) -> None:
        LOGGER.log(
            LEVELS[self._terms.level],
            "%s",
            work.filled(template),
            extra={"facts": work.variables()},
        )
