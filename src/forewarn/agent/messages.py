"""What the decider is told, and what it tells the shell to do: values."""

from typing import Any

import msgspec

from forewarn.agent.records import Fact, Outcome
from forewarn.agent.rules import Rule
from forewarn.agent.steps import Step
from forewarn.client.event import Event


class Cause(msgspec.Struct, frozen=True):
    """What the decider is told."""


class Resumed(Cause, frozen=True):
    """The agent is back; told once, before anything else."""

    boot: str
    """Names the boot; `""` where the platform does not tell."""


class Looked(Cause, frozen=True):
    """What the endpoint's document shows now, all of it."""

    events: tuple[Event, ...]
    machine: str | None
    """This machine's name; None while it is not known."""


class Found(Cause, frozen=True):
    """An action has found out how things are, and waits to change them."""

    run: int
    facts: dict[str, Any]


class Finished(Cause, frozen=True):
    """An action has ended."""

    run: int
    outcome: Outcome
    """DONE, FAILED or CUT."""
    text: str = ""


class Answered(Cause, frozen=True):
    """What became of an approval."""

    request: int
    taken: bool | None
    """True after a 200; False where the endpoint refused it; None where nobody knows."""


class Heard(Cause, frozen=True):
    """What peers answered in one round."""

    round: int
    prepared: frozenset[str]
    """The names of those that are prepared for this very event, as `name_of` gives them."""


class Reloaded(Cause, frozen=True):
    """Somebody wants the rules read anew, and what is stuck tried once more."""

    rules: tuple[Rule, ...]


class Retry(Cause, frozen=True):
    """Somebody wants what is held to be prepared for once more, by the rule that took it."""


class Closing(Cause, frozen=True):
    """The agent is to end: what is under way is finished, and nothing more is begun."""


class Woken(Cause, frozen=True):
    """Time has passed."""


class Command(msgspec.Struct, frozen=True):
    """What the shell is to do."""


class Write(Command, frozen=True):
    """Sync a record into the journal before anything that follows."""

    record: Fact


class Begin(Command, frozen=True):
    """Begin an action."""

    run: int
    """Names this run in what is told of it."""
    effect: str
    """What it does to the machine, by the name that records have."""
    step: Step
    undo: bool
    event: Event
    rule: str
    until: float
    """When it is told to stop."""
    attempt: int
    facts: dict[str, Any] | None
    """What was noted before it was done; None if nothing was."""


class Proceed(Command, frozen=True):
    """What the action found out is in the journal: it may change things now."""

    run: int


class Stop(Command, frozen=True):
    """Tell an action to end now."""

    run: int


class Approve(Command, frozen=True):
    """Approve an event."""

    request: int
    event: Event


class Ask(Command, frozen=True):
    """Ask peers whether they are prepared for an event."""

    round: int
    event_id: str
    machines: tuple[str, ...]
