"""Looks at the endpoint in a thread of its own, and sends approvals.

Beside the client's `watch`, which tells change after change, the agent takes whole documents: what
supersedes an event must be seen before that event's end is acted on.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from forewarn.agent import messages
from forewarn.client.errors import ClientError, Misuse, Refused
from forewarn.client.event import Event, Trouble
from forewarn.client.sync import Client
from forewarn.client.watch import NO_NAME

LOGGER: Final = logging.getLogger("forewarn.agent")

FAULT_SECONDS: Final = 1.0
"""Before the next look after a fault of our own: as long as between two polls."""

APPROVAL_SECONDS: Final = 10.0
"""How long to try one approval; then the decider asks the peers again."""


class Poller:
    """Watches one endpoint, and approves there.

    The watching thread writes the attributes, others read them: each is one value. Without an
    endpoint it looks for one, without a machine it asks for the name. An invalid one is a Misuse.
    `known` are the events that an earlier process saw: their ends are confirmed too.
    """

    def __init__(
        self,
        endpoint: str | None,
        machine: str | None,
        tell: Callable[[messages.Input], None],
        known: Iterable[Event] = (),
    ) -> None:
        self.trouble = ""
        """Why no good answer comes; `""` while they do."""
        self._client = Client(endpoint, name=machine)
        self._tell = tell
        self._known = tuple(known)
        self._documents = self._client.documents(known=self._known, on_trouble=self._note)
        self._word: tuple[str, str] = ("", "")
        self._said = self._word
        self._saying = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="poller", daemon=True)

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

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def approve(self, output: messages.ApproveEvent) -> None:
        """Approve an event in a thread of its own; the answer is told."""
        try:
            threading.Thread(target=self._approve, args=(output,), daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            LOGGER.warning("approving %s: %s", output.event.event_id, error)
            self._tell(messages.ApprovalAnswered(output.request, None))

    def report(self, word: tuple[str, str]) -> None:
        """Tell Forewarn how the machine fares, in a thread of its own; the latest word counts."""
        self._word = word
        try:
            threading.Thread(target=self._say, daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            LOGGER.warning("could not report how the machine fares: %s", error)

    def _say(self) -> None:
        with self._saying:
            if (word := self._word) != self._said and not self._closed.is_set():
                self._said = word
                with contextlib.suppress(ClientError, OSError):  # the next look says it too
                    self._client.report(*word)

    def close(self) -> None:
        """End at once."""
        self._closed.set()
        self._client.close()

    def _look(self) -> None:
        """Look until it is closed, whatever happens: an agent that sees nothing is useless."""
        while not self._closed.is_set():
            try:
                for document in self._documents:
                    self.trouble, self._known = "", document.events
                    self._tell(messages.DocumentSeen(document.events, self._client.name))
            except Exception as error:
                LOGGER.exception(
                    "internal error while watching the endpoint; the agent tries again"
                )
                self.trouble = f"internal error: {error}"
                self._documents.close()
                self._closed.wait(FAULT_SECONDS)
                with contextlib.suppress(Misuse):  # it was closed
                    self._documents = self._client.documents(
                        known=self._known, on_trouble=self._note
                    )

    def _note(self, trouble: Trouble) -> None:
        if trouble.reason != NO_NAME:  # its end is not told
            self.trouble = "" if trouble.over else trouble.message

    def _approve(self, output: messages.ApproveEvent) -> None:
        taken: bool | None = None
        try:
            self._client.approve(output.event, within_seconds=APPROVAL_SECONDS)
            taken = True
        except Refused as refused:
            taken = False
            LOGGER.warning("approving %s was refused: %s", output.event.event_id, refused)
        except (ClientError, OSError) as error:  # OSError: the process has no files left
            LOGGER.warning("approving %s: %s", output.event.event_id, error)
        finally:
            self._tell(messages.ApprovalAnswered(output.request, taken))
