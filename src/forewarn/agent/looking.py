"""Looking at the endpoint: a thread that tells each document, and sends approvals.

Beside the client's `Watch`, which tells change after change, the agent wants the whole document at
once: what supersedes an event must be seen before that event's end is acted on.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from forewarn.agent.messages import Answered, Approve, Cause, Looked
from forewarn.client import errands, opening, watch
from forewarn.client.errors import ClientError, Refused
from forewarn.client.sockets import Closed, Line
from forewarn.client.terms import Pause
from forewarn.client.watch import Watcher

LOGGER: Final = logging.getLogger("forewarn.agent")

FAULT_SECONDS: Final = 1.0
"""Before looking is begun anew after a fault of our own: as long as between two polls."""


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
        self._terms = opening.terms(None, endpoint, machine)
        self._tell = tell
        self._line = Line(self._terms)
        self._thread = threading.Thread(target=self._look, name="looking", daemon=True)

    def begin(self) -> None:
        """Begin to look."""
        self._thread.start()

    def approve(self, command: Approve) -> None:
        """Approve an event in a thread of its own; the answer is told."""
        thread = threading.Thread(target=self._approve, args=(command,), daemon=True)
        thread.start()

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
        self.trouble = ""
        watcher = Watcher(self._terms, watch.wishes(None, mine=False), None, opening.moment())
        while True:
            while (trouble := watcher.tell()) is not None:
                self.trouble = "" if trouble.over else trouble.message
                opening.tell(trouble, self._terms, None)
            while watcher.take() is not None:
                pass  # the document is told whole
            turn = self._line.do(watcher.step(opening.moment()))
            watcher.heard(turn)
            while watcher.take() is not None:
                pass
            if turn.outcome is not None and (listed := watcher.listed) is not None:
                self._tell(Looked(listed, self._terms.name))

    def _approve(self, command: Approve) -> None:
        line = Line(self._terms)
        taken: bool | None = None
        errand = errands.approval(self._terms, (command.event,), None, opening.moment())
        try:
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
        finally:
            line.close()
            self._tell(Answered(command.request, taken))
