"""The decider's inputs and outputs: values between it and the shell."""

from typing import Any, TypeAlias

import msgspec

from forewarn.agent.action_settings import RuleAction
from forewarn.agent.rules import ActionOutcome, Rule
from forewarn.agent.state import AnyRecord
from forewarn.client.event import Event


class Input(msgspec.Struct, frozen=True):
    """What the decider is told."""


class AgentStarted(Input, frozen=True):
    """The first input; `boot` names the boot, `""` where the platform does not tell."""

    boot: str


class DocumentSeen(Input, frozen=True):
    """The endpoint's whole document, the first or a changed one; ends are confirmed."""

    events: tuple[Event, ...]
    machine: str | None
    """This machine's name; None while it is not known."""


class FactsFound(Input, frozen=True):
    """An action has noted how things are, and waits to change them."""

    run: int
    facts: dict[str, Any]


class ActionFinished(Input, frozen=True):
    """An action has ended: DONE, FAILED or CUT."""

    run: int
    outcome: ActionOutcome
    text: str = ""


class ApprovalAnswered(Input, frozen=True):
    """What became of an approval."""

    request: int
    taken: bool | None
    """True after a 200; False where the endpoint refused it; None where nobody knows."""


class PeersAnswered(Input, frozen=True):
    """The peers' answers in one round."""

    round: int
    prepared: frozenset[str]
    """The names of those that are prepared for this very event, as `name_of` gives them."""


class RulesReloaded(Input, frozen=True):
    """An operator has reloaded the rules; what is stuck is tried again."""

    rules: tuple[Rule, ...]


class RetryHeld(Input, frozen=True):
    """An operator wants held events prepared for again, by the rule that took each."""


class ShutdownRequested(Input, frozen=True):
    """The agent is to end: what runs is finished, and nothing more begins."""


class TimePassed(Input, frozen=True):
    """Time has passed."""


class BeginAction(msgspec.Struct, frozen=True):
    """Begin an action, which is told to stop at `until` by the monotonic clock."""

    run: int
    """The number of this run, in later inputs and outputs."""
    effect: str
    action: RuleAction
    undo: bool
    event: Event
    rule: str
    until: float
    attempt: int
    facts: dict[str, Any] | None
    """What it noted before it was done; None if nothing."""


class ProceedAction(msgspec.Struct, frozen=True):
    """The action's note is in the journal: it may change things now."""

    run: int


class StopAction(msgspec.Struct, frozen=True):
    """Tell an action to end now."""

    run: int


class ApproveEvent(msgspec.Struct, frozen=True):
    """Approve an event."""

    request: int
    event: Event


class AskPeers(msgspec.Struct, frozen=True):
    """Ask the peers whether they are prepared for an event."""

    round: int
    event_id: str
    machines: tuple[str, ...]


Output: TypeAlias = AnyRecord | BeginAction | ProceedAction | StopAction | ApproveEvent | AskPeers
"""What the shell does. A record must be durable before anything that follows it."""
