"""What a rule comes to at best for an event: for each action the time that it will have.

Pure: what `machine` does as time goes by, foretold. Actions are done one after the other and share
the notice. How long most of them take nobody can foretell, so each counts as done at once, but for
a wait that the rule itself names; what does not fit at best fits never.
"""

from enum import StrEnum
from typing import Final

import msgspec

from forewarn.agent.rules import Rule
from forewarn.agent.steps import Step, Terms


class Fate(StrEnum):
    """What becomes of one action at best."""

    DONE = "done"
    CUT = "cut"
    """It is begun, and its wait cannot end in what is left."""
    NO_TIME = "no-time"
    """It is not begun: too little notice is left."""
    STARTED = "started"
    """It is not begun: the event has started."""
    SHARED = "shared"
    """It is not begun: an action before it has done the same."""
    HELD = "held"
    """It is not begun: the event is held by then."""


LACKING: Final = frozenset({Fate.CUT, Fate.NO_TIME, Fate.STARTED})
"""What the notice was too short for; `when_cut` says what it means."""


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """One action's."""

    step: Step
    fate: Fate
    left_seconds: float | None
    """What is left at best when its turn comes; None where no notice limits it."""

    @property
    def limit_seconds(self) -> float:
        """How long it may take at most, if its turn comes at once."""
        limit = self.step.terms.time_limit_seconds
        if self.left_seconds is None or self.step.terms.tells:
            return limit
        return min(limit, self.left_seconds)

    @property
    def undone(self) -> bool:
        """Whether it is begun, and there is something to undo when the event is over."""
        begun = self.fate in {Fate.DONE, Fate.CUT}
        return begun and undoes(self.step.terms)


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """All of a rule's."""

    prospects: tuple[Prospect, ...]
    held_by: int | None
    """Which of the actions holds the event for certain; None if none does."""

    @property
    def lacking(self) -> bool:
        """Whether the notice is too short for any of them."""
        return any(each.fate in LACKING for each in self.prospects)


def foretell(rule: Rule, left_seconds: float, *, started: bool) -> Outlook:
    """Return what becomes of each action of a rule at best.

    Args:
        rule: That takes the event.
        left_seconds: The notice that is left, less the margin; of no account once it has started.
        started: Whether the event has.
    """
    left = None if started else left_seconds
    prospects: list[Prospect] = []
    effects: set[str] = set()
    held_by: int | None = None
    for index, step in enumerate(rule.prepare):
        if held_by is not None:
            fate = Fate.HELD
        elif step.terms.effect in effects:
            fate = Fate.SHARED
        else:
            fate = _fate(step, left, barred=started and not rule.even_if_started)
        prospects.append(Prospect(step=step, fate=fate, left_seconds=left))
        if fate in LACKING and rule.when_cut == "hold":
            held_by = index
        if fate is Fate.DONE and step.terms.effect:
            effects.add(step.terms.effect)
        if left is not None and fate in {Fate.DONE, Fate.CUT}:
            left = max(0.0, left - _wait(step))
    return Outlook(prospects=tuple(prospects), held_by=held_by)


def undoes(terms: Terms) -> bool:
    """Tell whether an action has something to undo when the event is over."""
    ways = ("undo", "undo_signal", "undo_url", "undo_body", "undo_message")
    given = [getattr(terms, way) for way in ways if hasattr(terms, way)]
    return any(given) if given else True  # the other kinds undo by themselves


def _fate(step: Step, left: float | None, *, barred: bool) -> Fate:
    if step.terms.tells:
        return Fate.DONE
    if barred:
        return Fate.STARTED
    if left is None:
        return Fate.DONE
    if left <= 0 or left < step.terms.needs_seconds:
        return Fate.NO_TIME
    return Fate.CUT if _wait(step) >= left else Fate.DONE


def _wait(step: Step) -> float:
    """Return how long an action takes at least."""
    return 0.0 if step.ready is None else step.ready.wait_seconds
