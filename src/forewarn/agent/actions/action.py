"""What an action gets, how it reports failure, and the kinds that only concern the agent."""

import contextlib
import importlib
import logging
import string
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec

from forewarn.agent.action_settings import LogSettings, ReadySettings, RuleAction
from forewarn.client.event import Event

EVENT_LOGGER: Final = logging.getLogger("forewarn.agent.event")
LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

VARIABLE_PREFIX: Final = "FOREWARN_"

MAX_VARIABLE: Final = 64 * 1024
"""The longest variable of a program, in bytes: the kernel refuses 128 KiB. A longer value is in
the JSON on standard input only."""


class ActionFailed(Exception):  # noqa: N818 - an outcome, not a fault of the code
    """The action could not do its work; the text says why, for people."""


class ActionStopped(Exception):  # noqa: N818 - an outcome, not a fault of the code
    """The action was told to stop before it was done."""


class ActionRun:
    """One run of one action.

    Args:
        action: The action with its settings.
        event: The event for which it is done or undone.
        rule: The rule's name.
        machine: This machine's name; `""` while it is not known.
        undo: Whether it is undone.
        seconds_left: How much time it has; after that it is told to stop.
        facts: What it noted before it was done; None if it noted nothing.
        note: Writes facts into the journal and returns when they are durable.
    """

    def __init__(
        self,
        action: RuleAction,
        event: Event,
        *,
        rule: str = "",
        machine: str = "",
        undo: bool = False,
        seconds_left: float = 60.0,
        facts: dict[str, Any] | None = None,
        note: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self.action = action
        self.event = event
        self.undo = undo
        self.seconds_left = seconds_left
        self.facts = facts
        self.note = note
        self._rule = rule
        self._machine = machine
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._on_stop: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Tell the action to end now; any thread may call it."""
        with self._guard:
            self._stopped.set()
            callbacks = list(self._on_stop)
        for callback in callbacks:
            callback()

    def wait(self, seconds: float) -> None:
        """Wait.

        Raises:
            ActionStopped: It was told to stop before the time was over.
        """
        if self._stopped.wait(seconds):
            raise ActionStopped

    @contextlib.contextmanager
    def on_stop(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` if the action is told to stop within this block.

        Args:
            callback: Ends the block soon, such as by closing a socket. Another thread calls it,
                perhaps in the moment in which the block ends by itself.
        """
        with self._guard:
            if self._stopped.is_set():
                raise ActionStopped
            self._on_stop.append(callback)
        try:
            yield
        finally:
            with self._guard:
                self._on_stop.remove(callback)

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
        """Return the variables of a program, without those that are too long for the kernel."""
        values = self.variables() | {"seconds_left": f"{self.seconds_left:.0f}"}
        return {
            VARIABLE_PREFIX + name.upper(): text.replace("\0", "")
            for name, text in values.items()
            if len(text.encode()) <= MAX_VARIABLE
        }

    def document(self) -> bytes:
        """Return the event as JSON, by the names of the variables."""
        told: dict[str, Any] = dict(self.variables())
        told["resources"] = list(self.event.resources)
        told["duration_seconds"] = self.event.duration_seconds
        told["seconds_left"] = round(self.seconds_left)
        return msgspec.json.encode(told)

    def filled(self, template: str) -> str:
        """Return a template with the event's values in it."""
        return string.Template(template).substitute(self.variables())


class Action(Protocol):
    """Does one kind of action."""

    def prepare(self, run: ActionRun) -> str:
        """Do it; return a word about it for the log, or `""`.

        Raises:
            ActionFailed: It could not be done.
            ActionStopped: It was told to stop before it was done.
        """
        ...

    def recover(self, run: ActionRun) -> str:
        """Undo what was done of it; the rest is as for `prepare`."""
        ...


class ReadyAction:
    """Waits while the balancer's probe takes the machine out.

    `/readyz` is not answered here: its answer follows from the journal, so it is 503 from the
    moment at which this action is recorded as begun until it is being undone, whatever kills and
    boots happen between.
    """

    def __init__(self, settings: ReadySettings) -> None:
        self._settings = settings

    def prepare(self, run: ActionRun) -> str:
        """Wait."""
        run.wait(self._settings.wait_seconds)
        return ""

    def recover(self, run: ActionRun) -> str:
        """Do nothing: `/readyz` says 200 again by now."""
        del run
        return ""


class LogAction:
    """Writes a line to the agent's log for the event, and one for its end."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings

    def prepare(self, run: ActionRun) -> str:
        """Write `message`."""
        self._write(self._settings.message, run)
        return ""

    def recover(self, run: ActionRun) -> str:
        """Write `undo_message`, if there is one."""
        if self._settings.undo_message:
            self._write(self._settings.undo_message, run)
        return ""

    def _write(self, template: str, run: ActionRun) -> None:
        level = LEVELS[self._settings.level]
        EVENT_LOGGER.log(level, "%s", run.filled(template), extra={"facts": run.variables()})


CLASSES: Final = {
    "command": ("program", "CommandAction"),
    "service": ("units", "ServiceAction"),
    "signal": ("units", "SignalAction"),
    "ready": ("action", "ReadyAction"),
    "haproxy": ("haproxy", "HaproxyAction"),
    "http": ("http", "HttpAction"),
    "notify": ("notify", "NotifyAction"),
    "log": ("action", "LogAction"),
}
"""The module and class of each kind."""


def load(action: RuleAction) -> Action:
    """Return the implementation of an action."""
    module, name = CLASSES[action.kind]
    loaded = importlib.import_module(f"forewarn.agent.actions.{module}")
    made: Action = getattr(loaded, name)(action.settings)
    return made
