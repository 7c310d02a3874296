"""One run of an action: its input, its end, and a stop before that.

The two kinds that only concern the agent itself are here too: `ready` and `log`.
"""

import abc
import codecs
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from forewarn import settings
from forewarn.agent import decider, rules
from forewarn.agent.rules import ActionSettings, LogSettings, ReadySettings
from forewarn.client import event

LOGGER: Final = logging.getLogger("forewarn.agent")
EVENT_LOGGER: Final = logging.getLogger("forewarn.agent.event")
LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

MAX_FILE: Final = 64 * 1024

S = TypeVar("S", bound=ActionSettings)


class ActionEnd(Exception):  # noqa: N818 - an outcome, not a fault of the code
    """The action has ended otherwise than well; the text says why, for people.

    With `final` it is not retried: it may have done something that must not be done twice.
    """

    def __init__(self, text: str = "", *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class ActionFailed(ActionEnd):
    """The action could not do its work."""


class ActionStopped(ActionEnd):
    """The action was stopped before it was done."""


class ActionRun:
    """One run of one action, on this machine, from a moment of the monotonic clock."""

    def __init__(
        self,
        begun: decider.BeginAction,
        machine: str,
        now: float,
        tell: Callable[[decider.Input], None],
    ) -> None:
        self.begun = begun
        """The action, its event and what it noted before it was done."""
        self.seconds_left = max(0.0, begun.until - now)
        """Seconds that it has; after that it is stopped."""
        self._machine = machine
        self._tell = tell
        self._stopped = threading.Event()
        self._may_proceed = threading.Event()
        self._guard = threading.Lock()
        self._on_stop: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        """True if the agent has stopped it."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Ask the action to end now; any thread may call it."""
        with self._guard:
            self._stopped.set()
            callbacks = list(self._on_stop)
        self._may_proceed.set()
        for callback in callbacks:
            callback()

    def wait(self, seconds: float) -> None:
        """Wait; raise ActionStopped if the run is stopped before the time is over."""
        if self._stopped.wait(seconds):
            raise ActionStopped

    def note(self, facts: dict[str, Any]) -> None:
        """Write facts into the journal, and return when they are on the disk."""
        self._tell(decider.FactsFound(self.begun.run, facts))
        self._may_proceed.wait()
        if self.stopped:
            raise ActionStopped

    def proceed(self) -> None:
        """Release the action from `note`: its facts are in the journal."""
        self._may_proceed.set()

    @contextlib.contextmanager
    def on_stop(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback`, which ends this block soon, if the run is stopped within it.

        Another thread calls it, perhaps just when the block ends by itself.
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
        """Return the variables of templates, by name."""
        return event.facts(self.begun.event) | {
            "machine": self._machine,
            "phase": "undo" if self.begun.undo else "prepare",
            "rule": self.begun.rule,
        }

    def environment(self) -> dict[str, str]:
        """Return the variables of a program, without those that are too long for the kernel."""
        return event.environment(self.variables() | {"seconds_left": f"{self.seconds_left:.0f}"})

    def document(self) -> bytes:
        """Return the event as JSON, by the names of the variables."""
        told: dict[str, Any] = dict(self.variables())
        told["resources"] = list(self.begun.event.resources)
        told["duration_seconds"] = self.begun.event.duration_seconds
        told["seconds_left"] = round(self.seconds_left)
        return msgspec.json.encode(told)


class Action(abc.ABC, Generic[S]):
    """Does one action, once; the methods return a word for the log.

    They raise ActionFailed, or ActionStopped if the run is stopped before it is done.
    """

    def __init__(self, run: ActionRun, settings: S) -> None:
        self.run = run
        self.settings = settings

    def act(self) -> str:
        """Do it, or undo it if there is something to undo."""
        if not self.run.begun.undo:
            return self.prepare()
        return self.recover() if self.settings.undoes else ""

    @abc.abstractmethod
    def prepare(self) -> str:
        """Do it."""

    def recover(self) -> str:
        """Undo it."""
        return ""


class ReadyAction(Action[ReadySettings]):
    """Waits while the balancer's probe takes the machine out.

    The journal decides what `/readyz` answers, so it is 503 from the record that this action begins
    until it is being undone, whatever kills and boots happen between.
    """

    def prepare(self) -> str:
        self.run.wait(self.settings.wait_seconds)
        return ""


class LogAction(Action[LogSettings]):
    """Writes a line to the agent's log for the event, and one for its end."""

    def prepare(self) -> str:
        return self._write(self.settings.message)

    def recover(self) -> str:
        return self._write(self.settings.undo_message)

    def _write(self, template: str) -> str:
        values = self.run.variables()
        line = rules.filled(template, values)
        EVENT_LOGGER.log(LEVELS[self.settings.level], "%s", line, extra={"facts": values})
        return ""


def contents(file: str) -> bytes:
    """Return a settings file's content, 64 KiB at most: a secret, addresses, a number.

    The mark that editors on Windows put before UTF-8 is left out.
    """
    try:
        with settings.open_file(Path(file)) as opened:
            return opened.read(MAX_FILE).removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ActionFailed(f"cannot read {file}: {error.strerror}") from error


def hang_up(connection: socket.socket | None) -> None:
    """End a wait for an answer, from another thread: a close alone would not wake it."""
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
