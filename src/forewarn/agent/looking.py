"""Looking at the endpoint: a thread that tells each document, and sends approvals.

Beside the client's `Watch`, which tells change after change, the agent wants the whole document at
once: what supersedes an event must be seen before that event's end is acted on.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from forewarn import clock
from forewarn.agent.messages import Answered, Approve, Cause, Looked
from forewarn.client import errands, opening, watch
from forewarn.client.errors import ClientError, Refused
from forewarn.client.event import Trouble
from forewarn.client.sockets import Closed, Line
from forewarn.client.terms import Pause
from forewarn.client.watch import Watcher

LOGGER: Final = logging.getLogger("forewarn.agent")

FAULT_SECONDS: Final = 1.0
"""Before looking is begun anew after a fault of our own: as long as between two polls."""

PASSING: Final = frozenset({watch.NO_NAME})
"""Troubles that are a word about one moment, and whose end nobody tells."""

APPROVAL_SECONDS: Final = 10.0
"""How long one approval is tried. Then the decider is told, which asks the other machines anew:
what they said may no longer be so when an endpoint that was away is back."""


class Looking:
    """Watches one endpoint, and approves there.

    Args:
        endpoint: Its address; None to find it.
        machine: This machine's name; None to learn it.
        tell: Takes what is to be told, from any thread.

    Raises:
        Misuse: The address or the name is none.
    """

    def __init__(
        self, endpoint: str | None, machine: str | None, tell: Callable[[Cause], None]
    ) -> None:
        self.trouble = ""
        """Why no good answer comes; `""` while they do."""
        self.answered_at: float | None = None
        """When the last one came, by the monotonic clock; None before the first."""
        self._terms = opening.terms(None, endpoint, machine)
        self._tell = tell
        self._line = Line(self._terms)
        self._thread = threading.Thread(target=self._look, name="looking", daemon=True)

    @property
    def is_answered(self) -> bool:
        """Whether the last look was answered."""
        return self.answered_at is not None and not self.trouble

    def begin(self) -> None:
        """Begin to look."""
        self._thread.start()

    def approve(self, command: Approve) -> None:
        """Approve an event in a thread of its own; the answer is told."""
        thread = threading.Thread(target=self._approve, args=(command,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            LOGGER.warning("approving %s: %s", command.event.event_id, error)
            self._tell(Answered(command.request, None))

    def close(self) -> None:
        """End at once."""
        self._line.close()

    def _look(self) -> None:
        """Look until it is closed, whatever happens: an agent that sees nothing is none."""
        with contextlib.suppress(Closed):
            while True:
                try:
                    self._watch()
                except Closed:
                    raise
                except Exception as error:
                    LOGGER.exception("a fault in looking, the agent's own; it is begun anew")
                    self.trouble = f"a fault of the agent's own: {error}"
                self._line.do(Pause(FAULT_SECONDS))

    def _watch(self) -> None:
        watcher = Watcher(self._terms, watch.wishes(None, mine=False), None, opening.moment())
        looks = 0
        while True:
            turn = self._line.do(watcher.step(opening.moment()))
            watcher.heard(turn)
            while watcher.take() is not None:
                pass  # the document is told whole
            while (trouble := watcher.tell()) is not None:
                self._say(trouble)
            if watcher.looks > looks and watcher.listed is not None:
                looks = watcher.looks
                self.answered_at, self.trouble = clock.monotonic(), ""
                self._tell(Looked(watcher.listed, self._terms.name))

    def _say(self, trouble: Trouble) -> None:
        opening.tell(trouble, self._terms, None)
        if trouble.reason not in PASSING:
            self.trouble = "" if trouble.over else trouble.message

    def _approve(self, command: Approve) -> None:
        taken: bool | None = None
        errand = errands.approval(self._terms, (command.event,), APPROVAL_SECONDS, opening.moment())
        line = None
        try:
            line = Line(self._terms)
            wanted = next(errand)
            while True:
                wanted = errand.send(line.do(wanted))
        except StopIteration:
            taken = True
        except Refused as refused:
            taken = False
            LOGGER.warning("approving %s was refused: %s", command.event.event_id, refused)
        except ClientError as error:
            LOGGER.warning("approving %s: %s", command.event.event_id, error)
        except OSError as error:  # there are no files left to make a line of
            LOGGER.warning("approving %s: %s", command.event.event_id, error)
        finally:
            if line is not None:
                line.close()
            self._tell(Answered(command.request, taken))
