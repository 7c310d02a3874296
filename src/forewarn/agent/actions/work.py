"""What an action is given, and how it says that it could not."""

import contextlib
import string
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec

from forewarn.agent.steps import Step
from forewarn.client.event import Event

VARIABLE_PREFIX: Final = "FOREWARN_"


class Failed(Exception):  # noqa: N818 - an outcome, not a fault of the code
    """The action could not do what it was asked; the text says why, for people."""


class Cut(Exception):  # noqa: N818 - an outcome, not a fault of the code
    """The action was told to stop before it was done."""


class Work:
    """One run of one action.

    Args:
        step: The action, with its terms.
        event: The event for which it is done or undone.
        rule: The rule's name.
        machine: This machine's name; `""` while it is not known.
        undo: Whether it is undone.
        seconds_left: How much time it has; after that it is told to stop.
        facts: What was noted before it was done; None if nothing was.
        note: Writes facts into the journal, and returns when they are there.
    """

    def __init__(
        self,
        step: Step,
        event: Event,
        *,
        rule: str = "",
        machine: str = "",
        undo: bool = False,
        seconds_left: float = 60.0,
        facts: dict[str, Any] | None = None,
        note: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self.step = step
        self.event = event
        self.undo = undo
        self.seconds_left = seconds_left
        self.facts = facts
        self.note = note
        self._rule = rule
        self._machine = machine
        self._told = threading.Event()
        self._guard = threading.Lock()
        self._endings: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._told.is_set()

    def stop(self) -> None:
        """Tell the action to end now. Any thread may."""
        with self._guard:
            self._told.set()
            endings = list(self._endings)
        for ending in endings:
            ending()

    def wait(self, seconds: float) -> None:
        """Return after so many seconds.

        Raises:
            Cut: It was told to stop before.
        """
        if self._told.wait(seconds):
            raise Cut

    @contextlib.contextmanager
    def ending(self, how: Callable[[], None]) -> Iterator[None]:
        """Have `how` called when the action is told to stop within this block.

        Args:
            how: What ends the block soon, such as closing a socket; called by another thread.
        """
        with self._guard:
            if self._told.is_set():
                raise Cut
            self._endings.append(how)
        try:
            yield
        finally:
            with self._guard:
                self._endings.remove(how)

    def variables(self) -> dict[str, str]:
        """Return what templates may name, by name."""
        event = self.event
        return {
            "event_id": event.event_id,
            "event_type": str(event.event_type),
            "event_status": str(event.status),
            "event_source": str(event.source or ""),
            "description": event.description,
            "resources": ",".join(event.resources),
            "not_before": "" if event.not_before is None else event.not_before.isoformat(),
            "duration_seconds": str(event.duration_seconds),
            "machine": self._machine,
            "phase": "undo" if self.undo else "prepare",
            "rule": self._rule,
        }

    def environment(self) -> dict[str, str]:
        """Return the variables that a program finds."""
        own = {VARIABLE_PREFIX + name.upper(): text for name, text in self.variables().items()}
        own[VARIABLE_PREFIX + "SECONDS_LEFT"] = f"{self.seconds_left:.0f}"
        return {name: text.replace("\0", "") for name, text in own.items()}

    def document(self) -> bytes:
        """Return the event as JSON, by the names of the variables."""
        told: dict[str, Any] = dict(self.variables())
        told["resources"] = list(self.event.resources)
        told["duration_seconds"] = self.event.duration_seconds
        told["seconds_left"] = round(self.seconds_left)
        return msgspec.json.encode(told)

    def filled(self, template: str) -> str:
        """Return a template with the event's words in it."""
        return string.Template(template).substitute(self.variables())


class Action(Protocol):
    """Does one kind of step."""

    def prepare(self, work: Work) -> str:
        """Do it; return a word about it for the log, or `""`.

        Raises:
            Failed: It could not be done.
            Cut: It was told to stop before it was done.
        """
        ...

    def recover(self, work: Work) -> str:
        """Undo it, as far as it was done; the rest is as for `prepare`."""
        ...
