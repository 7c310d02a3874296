r"""The life of an event in the agent's hands, as one table.

    (new) --appear--> Seen --take--> Preparing --finish--> Prepared --approve--> Approved
                                        |  ^                  |                     |
                                        |  ^-------boot-------+--------boot---------+
                                        |  +--retry---+
                                        +--hold--> Held

Each of them ends by vanish, in Over. What is not in the table raises and changes nothing: nothing
is approved that was not prepared first, and nothing leaves Held but by the event's end, or by
somebody's word, which begins to prepare anew.
`docs/agent.md` is drawn from this table, and a test compares the two.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Phase(StrEnum):
    """How far an event is."""

    SEEN = "Seen"
    """It is in the document, and no rule that prepares or approves has taken it."""
    PREPARING = "Preparing"
    """A rule's actions are done, one after the other."""
    PREPARED = "Prepared"
    """All that its rule wants is done."""
    HELD = "Held"
    """Something failed, or was cut, that had to be done: it is not approved."""
    APPROVED = "Approved"
    """The endpoint has taken the approval."""
    OVER = "Over"
    """It is in the document no more: what was done is undone."""


class Trigger(StrEnum):
    """What moves an event on."""

    APPEAR = "appear"
    """The document shows it for the first time."""
    NOTE = "note"
    """A rule takes it that only tells somebody; another may still take it."""
    TAKE = "take"
    """A rule takes it that prepares or approves; that rule keeps it."""
    FINISH = "finish"
    """The last action of the rule has ended, or none had to be waited for."""
    HOLD = "hold"
    """An action failed, or was cut, and the rule does not approve then."""
    RETRY = "retry"
    """Somebody wants what is held to be prepared for once more."""
    APPROVE = "approve"
    """The endpoint has answered the approval with 200."""
    BOOT = "boot"
    """A boot has undone an action that its rule wants done again."""
    VANISH = "vanish"
    """The document shows it no more."""


TRANSITIONS: Final[Mapping[tuple[Phase | None, Trigger], Phase]] = MappingProxyType(
    {
        (None, Trigger.APPEAR): Phase.SEEN,
        (Phase.SEEN, Trigger.NOTE): Phase.SEEN,
        (Phase.SEEN, Trigger.TAKE): Phase.PREPARING,
        (Phase.SEEN, Trigger.VANISH): Phase.OVER,
        (Phase.PREPARING, Trigger.FINISH): Phase.PREPARED,
        (Phase.PREPARING, Trigger.HOLD): Phase.HELD,
        (Phase.PREPARING, Trigger.BOOT): Phase.PREPARING,
        (Phase.PREPARING, Trigger.VANISH): Phase.OVER,
        (Phase.PREPARED, Trigger.APPROVE): Phase.APPROVED,
        (Phase.PREPARED, Trigger.BOOT): Phase.PREPARING,
        (Phase.PREPARED, Trigger.VANISH): Phase.OVER,
        (Phase.HELD, Trigger.RETRY): Phase.PREPARING,
        (Phase.HELD, Trigger.VANISH): Phase.OVER,
        (Phase.APPROVED, Trigger.BOOT): Phase.PREPARING,
        (Phase.APPROVED, Trigger.VANISH): Phase.OVER,
    }
)
"""From where, by what, to where; None is an event that was never seen."""


class Impossible(Exception):  # noqa: N818 - it names what was asked for
    """The table has no such step; nothing was changed."""


def step(event_id: str, phase: Phase | None, trigger: Trigger) -> Phase:
    """Return the phase that follows.

    Args:
        event_id: Whose, for the message.
        phase: Where it is, None before it is seen.
        trigger: What happens to it.

    Raises:
        Impossible: The table has no such step.
    """
    following = TRANSITIONS.get((phase, trigger))
    if following is None:
        message = f"event {event_id} is {phase or 'new'} and cannot {trigger.value}"
        raise Impossible(message)
    return following
