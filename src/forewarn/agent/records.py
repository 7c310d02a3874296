"""What the journal holds: everything that the agent must still know after its own end.

Each record is a fact. The `ledger` makes the agent's durable state out of them, while it runs and
when it comes back alike, so both are the same by construction.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

from forewarn.agent.phases import Phase
from forewarn.agent.rules import Rule
from forewarn.agent.steps import Step
from forewarn.client.event import Event

TEXT_LENGTH: Final = 500
"""How much of what an action said is kept, in characters."""

HEAD_LENGTH: Final = 120
"""How much of that is its beginning, which says what went wrong; the end says why."""


def shortened(text: str) -> str:
    """Return what an action said, without its middle where it is long."""
    if len(text) <= TEXT_LENGTH:
        return text
    return f"{text[:HEAD_LENGTH]}…{text[HEAD_LENGTH + 1 - TEXT_LENGTH :]}"


class Outcome(StrEnum):
    """How one action ended, or why it was never begun."""

    DONE = "done"
    FAILED = "failed"
    """It said so, or took longer than its own limit."""
    CUT = "cut"
    """The notice, or the event, was over before it had ended."""
    INTERRUPTED = "interrupted"
    """The agent itself ended in the middle of it, and it may not be begun again."""
    NO_TIME = "no-time"
    """It was not begun: too little notice was left."""
    STARTED = "started"
    """It was not begun: the event had started."""
    SHARED = "shared"
    """It was not begun: what it does had been done for another event."""

    @property
    def good(self) -> bool:
        """Whether what was wanted is so."""
        return self in {Outcome.DONE, Outcome.SHARED}

    @property
    def cut(self) -> bool:
        """Whether the notice was what it lacked."""
        return self in {Outcome.CUT, Outcome.NO_TIME, Outcome.STARTED}


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag=str.lower):
    """One fact."""


class Taken(Record, frozen=True, kw_only=True):
    """A rule has taken an event."""

    event: Event
    """As it was then, without times of this boot's monotonic clock."""
    rule: Rule
    """Whole: what was begun is undone as it was said then, whatever the files say later."""


class Begun(Record, frozen=True, kw_only=True):
    """An action is begun in the next moment."""

    effect: str
    undo: bool
    event_id: str
    step: int
    attempt: int
    """From 1."""


class Noted(Record, frozen=True, kw_only=True):
    """An action has found out how things were before it changes them."""

    effect: str
    facts: dict[str, Any]
    """Its own, given to it again when it undoes."""


class Ended(Record, frozen=True, kw_only=True):
    """An action has ended."""

    effect: str
    undo: bool
    outcome: Outcome
    final: bool
    """Whether it is not tried again."""
    text: str = ""
    """For people: what it said, shortened."""


class Passed(Record, frozen=True, kw_only=True):
    """An action is not begun, and why."""

    event_id: str
    step: int
    outcome: Outcome


class Approved(Record, frozen=True, kw_only=True):
    """The endpoint has taken the approval."""

    event_id: str


class Gone(Record, frozen=True, kw_only=True):
    """The document shows the event no more."""

    event_id: str


class Booted(Record, frozen=True, kw_only=True):
    """The machine runs by another boot than before."""

    boot: str


class Pressed(Record, frozen=True, kw_only=True):
    """What could not be undone is to be tried once more."""

    interrupted: bool
    """Also what the agent's own end cut and may not be begun again: somebody says so."""


class Retried(Record, frozen=True, kw_only=True):
    """What is held is to be prepared for once more: somebody says so."""

    event_id: str


class Kept(Record, frozen=True, kw_only=True):
    """All that the records before it come to: the first line of a journal made short."""

    boot: str
    cases: list["Case"]
    effects: list["Effect"]


class Case(msgspec.Struct, kw_only=True):
    """One event in the agent's hands."""

    event: Event
    phase: Phase
    rule: Rule | None = None
    """The rule that took it last; None for a moment only."""
    results: list[Outcome | None] = []
    """How each action of the rule ended; None while it has not."""
    again: list[int] = []
    """The actions that a boot has undone and that are done again."""
    reasons: dict[int, str] = {}
    """What the actions that ended otherwise than well said last, by their index."""

    @property
    def event_id(self) -> str:
        """Its id, in one case of letters."""
        return self.event.event_id.upper()

    def effect(self, index: int) -> str:
        """Return what its action with this index does to the machine, by one name."""
        assert self.rule is not None
        own = f"{self.event_id}/{self.rule.name}/{index}"
        return self.rule.prepare[index].terms.effect or own


class Effect(msgspec.Struct, kw_only=True):
    """What an action has done to the machine, or is doing, and nobody has undone."""

    key: str
    event: Event
    """The event for which it was begun last."""
    rule: str
    step: Step
    index: int
    """Which action of the rule it is."""
    order: int
    """Of all that stands, which was begun how late."""
    attempt: int
    doing: bool = True
    outcome: Outcome | None = None
    """How the last attempt to do it ended."""
    final: bool = False
    """Whether doing it is not tried again for that event."""
    undoing: bool = False
    undo_attempt: int = 0
    stuck: Outcome | None = None
    """How undoing it failed for good."""
    interrupted: bool = False
    """Whether the agent's end cut it, doing or undoing, and it may not be begun again."""
    facts: dict[str, Any] | None = None
    """What was noted of how things were before; None if nothing was."""
    text: str = ""
    """What its last try to do it, or to undo it, said if it did not end well; else `""`."""
    served: list[str] = []
    """The events, by id, that it was begun for or that found it done."""

    @property
    def event_id(self) -> str:
        """The event's id, in one case of letters."""
        return self.event.event_id.upper()

    @property
    def busy(self) -> bool:
        """Whether it is being done or undone."""
        return self.doing or self.undoing


Fact = Taken | Begun | Noted | Ended | Passed | Approved | Gone | Booted | Pressed | Retried | Kept
"""Every kind of record, as the journal reads them."""
