"""Runs actions, each in a thread of its own.

The kinds are all loaded with the agent, and not at their first use: weeks later the package may be
another release's, or away while it is replaced. They take 650 KiB.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from forewarn.agent import decider, rules
from forewarn.agent.actions.action import (
    Action,
    ActionFailed,
    ActionRun,
    ActionStopped,
    LogAction,
    ReadyAction,
)
from forewarn.agent.actions.haproxy import HaproxyAction
from forewarn.agent.actions.http import HttpAction, NotifyAction
from forewarn.agent.actions.program import CommandAction, ServiceAction, SignalAction
from forewarn.agent.rules import ActionOutcome

LOGGER: Final = logging.getLogger("forewarn.agent")

KINDS: Final[Mapping[str, type[Action[Any]]]] = MappingProxyType(
    {
        "command": CommandAction,
        "service": ServiceAction,
        "signal": SignalAction,
        "ready": ReadyAction,
        "haproxy": HaproxyAction,
        "http": HttpAction,
        "notify": NotifyAction,
        "log": LogAction,
    }
)
"""The implementations of the kinds of `RuleAction`."""


def action_of(run: ActionRun) -> Action[Any]:
    """Return a run's action."""
    action = run.begun.action
    return KINDS[action.kind](run, action.settings)


class ActionRunner:
    """Runs actions, and always reports their end; in a dry run it only logs them.

    The deciding thread owns an entry of `_runs` until that run's thread starts, which removes it at
    its end. `stop` and `proceed` may come too late, and then find nothing.
    """

    def __init__(self, tell: Callable[[decider.Input], None], *, dry: bool = False) -> None:
        self._tell = tell
        self._dry = dry
        self._runs: dict[int, ActionRun] = {}

    def begin(self, told: decider.BeginAction, machine: str, now: float) -> None:
        """Begin an action; the arguments are those of `ActionRun`."""
        if self._dry:
            verb = "undo" if told.undo else "do"
            name = rules.action_name(told.action)  # the key of its effect may hold secrets
            facts = {"event_id": told.event.event_id, "rule": told.rule, "action": name}
            LOGGER.info("would %s %s", verb, told.action.kind, extra={"facts": facts})
            self._tell(decider.ActionFinished(told.run, ActionOutcome.DONE, "dry run"))
            return
        run = self._runs[told.run] = ActionRun(told, machine, now, self._tell)
        try:
            threading.Thread(target=self._run, args=(run,), daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            self._end(run, ActionOutcome.FAILED, str(error))

    def proceed(self, number: int) -> None:
        """Continue an action whose facts are in the journal."""
        if (run := self._runs.get(number)) is not None:
            run.proceed()

    def stop(self, number: int) -> None:
        """Ask an action to end now."""
        if (run := self._runs.get(number)) is not None:
            run.stop()

    def _run(self, run: ActionRun) -> None:
        outcome, final = ActionOutcome.FAILED, False
        try:
            text = action_of(run).act()
            outcome = ActionOutcome.DONE
        except ActionFailed as failed:
            text, final = str(failed), failed.final
        except ActionStopped as stopped:
            outcome, final = ActionOutcome.CUT, stopped.final
            text = str(stopped) or "the agent told it to stop"
        except Exception as error:
            LOGGER.exception("internal error in action %s", run.begun.action.kind)
            text = f"{type(error).__name__}: {error}"
        self._end(run, outcome, text, final=final)

    def _end(
        self, run: ActionRun, outcome: ActionOutcome, text: str, *, final: bool = False
    ) -> None:
        del self._runs[run.begun.run]
        self._tell(decider.ActionFinished(run.begun.run, outcome, text, final))
