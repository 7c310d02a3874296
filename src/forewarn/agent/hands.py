"""Carrying actions out: each in a thread of its own, its end told in any case."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from forewarn.agent.actions import catalog
from forewarn.agent.actions.work import Cut, Failed, Work
from forewarn.agent.messages import Begin, Cause, Finished, Found
from forewarn.agent.records import Outcome

LOGGER: Final = logging.getLogger("forewarn.agent")

LOOK_SECONDS: Final = 1.0
"""How often an action that waits for its note to be written looks whether it was told to stop."""


class Hands:
    """Runs actions.

    Args:
        tell: Takes what is to be told, from any thread.
        dry: Whether nothing is done, and only said.
    """

    def __init__(self, tell: Callable[[Cause], None], *, dry: bool = False) -> None:
        self._tell = tell
        self._dry = dry
        self._works: dict[int, Work] = {}
        self._noted: dict[int, threading.Event] = {}

    def begin(self, told: Begin, machine: str, now: float) -> None:
        """Begin an action.

        Args:
            told: What and until when.
            machine: This machine's name; `""` while it is not known.
            now: The monotonic clock's seconds.
        """
        if self._dry:
            verb = "undo" if told.undo else "do"
            LOGGER.info("would %s %s", verb, told.step.kind, extra={"facts": _facts(told)})
            self._tell(Finished(told.run, Outcome.DONE, "dry run"))
            return
        noted = self._noted[told.run] = threading.Event()

        def note(facts: dict[str, Any]) -> None:
            self._tell(Found(told.run, facts))
            while not noted.wait(LOOK_SECONDS):
                if work.stopped:
                    raise Cut

        work = self._works[told.run] = Work(
            told.step,
            told.event,
            rule=told.rule,
            machine=machine,
            undo=told.undo,
            seconds_left=max(0.0, told.until - now),
            facts=told.facts,
            note=note,
        )
        thread = threading.Thread(target=self._run, args=(told, work), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            self._end(Finished(told.run, Outcome.FAILED, str(error)))

    def proceed(self, run: int) -> None:
        """Let an action go on that has noted how things were."""
        noted = self._noted.get(run)
        if noted is not None:
            noted.set()

    def stop(self, run: int) -> None:
        """Tell an action to end now."""
        work = self._works.get(run)
        if work is not None:
            work.stop()

    def _run(self, told: Begin, work: Work) -> None:
        try:
            action = catalog.action(told.step)
            text = action.recover(work) if told.undo else action.prepare(work)
            ended = Finished(told.run, Outcome.DONE, text)
        except Failed as failed:
            ended = Finished(told.run, Outcome.FAILED, str(failed))
        except Cut as cut:
            ended = Finished(told.run, Outcome.CUT, str(cut) or "it was told to stop")
        except Exception as error:
            LOGGER.exception("a fault in %s, the agent's own", told.step.kind)
            ended = Finished(told.run, Outcome.FAILED, f"{type(error).__name__}: {error}")
        self._end(ended)

    def _end(self, ended: Finished) -> None:
        del self._works[ended.run]
        del self._noted[ended.run]
        self._tell(ended)


def _facts(told: Begin) -> dict[str, str]:
    return {"event_id": told.event.event_id, "rule": told.rule, "action": told.effect}
