"""Runs actions: each in a thread of its own, and its end is told in any case.

The deciding thread owns both dictionaries' entries until it starts a run's thread; that thread
removes them when it ends. `stop` and `proceed` may come too late, and then find nothing.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from forewarn.agent import messages
from forewarn.agent.actions import action
from forewarn.agent.actions.action import ActionFailed, ActionRun, ActionStopped
from forewarn.agent.state import ActionOutcome

LOGGER: Final = logging.getLogger("forewarn.agent")

LOOK_SECONDS: Final = 1.0
"""How often an action that waits for its note to be written looks whether it was told to stop."""


class ActionRunner:
    """Runs actions.

    Args:
        tell: Takes inputs for the decider, from any thread.
        dry: Whether nothing is done, and only logged.
    """

    def __init__(self, tell: Callable[[messages.Input], None], *, dry: bool = False) -> None:
        self._tell = tell
        self._dry = dry
        self._runs: dict[int, ActionRun] = {}
        self._noted: dict[int, threading.Event] = {}

    def begin(self, told: messages.BeginAction, machine: str, now: float) -> None:
        """Begin an action.

        Args:
            told: The action, and its deadline.
            machine: This machine's name; `""` while it is not known.
            now: The monotonic clock's seconds.
        """
        if self._dry:
            verb = "undo" if told.undo else "do"
            facts = {"event_id": told.event.event_id, "rule": told.rule, "action": told.effect}
            LOGGER.info("would %s %s", verb, told.action.kind, extra={"facts": facts})
            self._tell(messages.ActionFinished(told.run, ActionOutcome.DONE, "dry run"))
            return
        noted = self._noted[told.run] = threading.Event()

        def note(facts: dict[str, Any]) -> None:
            self._tell(messages.FactsFound(told.run, facts))
            while not noted.wait(LOOK_SECONDS):
                if run.stopped:
                    raise ActionStopped

        run = self._runs[told.run] = ActionRun(
            told.action,
            told.event,
            rule=told.rule,
            machine=machine,
            undo=told.undo,
            seconds_left=max(0.0, told.until - now),
            facts=told.facts,
            note=note,
        )
        thread = threading.Thread(target=self._run, args=(told, run), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            self._end(messages.ActionFinished(told.run, ActionOutcome.FAILED, str(error)))

    def proceed(self, number: int) -> None:
        """Let an action go on whose facts are in the journal."""
        noted = self._noted.get(number)
        if noted is not None:
            noted.set()

    def stop(self, number: int) -> None:
        """Tell an action to end now."""
        run = self._runs.get(number)
        if run is not None:
            run.stop()

    def _run(self, told: messages.BeginAction, run: ActionRun) -> None:
        outcome = ActionOutcome.FAILED
        try:
            loaded = action.load(told.action)
            text = loaded.recover(run) if told.undo else loaded.prepare(run)
            outcome = ActionOutcome.DONE
        except ActionFailed as failed:
            text = str(failed)
        except ActionStopped as stopped:
            outcome, text = ActionOutcome.CUT, str(stopped) or "it was told to stop"
        except Exception as error:
            LOGGER.exception("a fault in %s, the agent's own", told.action.kind)
            text = f"{type(error).__name__}: {error}"
        self._end(messages.ActionFinished(told.run, outcome, text))

    def _end(self, ended: messages.ActionFinished) -> None:
        del self._runs[ended.run]
        del self._noted[ended.run]
        self._tell(ended)
