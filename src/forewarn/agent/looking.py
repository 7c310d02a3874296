"""Reading the endpoint: a thread that reports each document, and sends approvals."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from forewarn.agent.messages import Answered, Approve, Cause, Looked
from forewarn.client.errors import ClientError, Misuse, Refused
from forewarn.client.event import Trouble
from forewarn.client.sync import Client, Documents
from forewarn.client.watch import NO_NAME

LOGGER: Final = logging.getLogger("forewarn.agent")

FAULT_SECONDS: Final = 1.0
"""Before looking begins again after a fault of our own: as long as between two polls."""

APPROVAL_SECONDS: Final = 10.0
"""How long one approval is tried. Then the decider is told, which asks the other machines again:
their answers may be out of date when an endpoint that was away is back."""


class Looking:
    """Watches one endpoint, and approves there.

    Args:
        endpoint: Its address; None to find it.
        machine: This machine's name; None to learn it.
        tell: Takes what is to be told, from any thread.

    Raises:
        Misuse: The address or the name is invalid.
    """

    def __init__(
        self, endpoint: str | None, machine: str | None, tell: Callable[[Cause], None]
    ) -> None:
        self.trouble = ""
        """Why no good answer comes; `""` while they do."""
        self._client = Client(endpoint, name=machine)
        self._documents: Documents = self._client.documents(on_trouble=self._say)
        self._closed = threading.Event()
        self._tell = tell
        self._thread = threading.Thread(target=self._look, name="looking", daemon=True)

    @property
    def answered_at(self) -> float | None:
        """When the last good answer came, by the monotonic clock; None before the first."""
        return self._documents.answered_at

    @property
    def looks(self) -> int:
        """How many good answers came."""
        return self._documents.looks

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
        self._closed.set()
        self._client.close()

    def _look(self) -> None:
        """Look until it is closed, whatever happens: an agent that sees nothing is none."""
        while True:
            try:
                for document in self._documents:
                    self.trouble = ""
                    self._tell(Looked(document.events, self._client.name))
            except Exception as error:
                LOGGER.exception("an internal error while reading the endpoint; trying again")
                self.trouble = f"an internal error: {error}"
            if self._closed.wait(FAULT_SECONDS):
                return
            with contextlib.suppress(Misuse):  # the client was closed meanwhile
                self._documents = self._client.documents(on_trouble=self._say)

    def _say(self, trouble: Trouble) -> None:
        if trouble.reason != NO_NAME:  # nobody tells the end of this one
            self.trouble = "" if trouble.over else trouble.message

    def _approve(self, command: Approve) -> None:
        taken: bool | None = None
        try:
            self._client.approve(command.event, within_seconds=APPROVAL_SECONDS)
            taken = True
        except Refused as refused:
            taken = False
            LOGGER.warning("approving %s was refused: %s", command.event.event_id, refused)
        except (ClientError, OSError) as error:  # OSError: there are no files left
            LOGGER.warning("approving %s: %s", command.event.event_id, error)
        finally:
            self._tell(Answered(command.request, taken))
