r"""The life of an operation, as one table (protocol.md section 6).

    (new) --queue--> Queued --announce--> Scheduled --start--> Started --return--> Returning
    (new) --announce--> Scheduled         Queued --strike--> Started
    (new) --strike--> Started             Queued, Scheduled --cancel--> Canceled
    Started, Returning --succeed--> Completed, --fail--> Failed

What is not in the table raises and changes nothing. `docs/lifecycle.md` is drawn from this table,
and a test compares the two.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from forewarn.maintenance.model import Refused
from forewarn.vocabulary import ErrorCode, EventStatus


class Trigger(StrEnum):
    """What changes an operation's status."""

    QUEUE = "queue"
    """It waits, unannounced, for another update domain of a scope."""
    ANNOUNCE = "announce"
    """Its guests get notice."""
    STRIKE = "strike"
    """It starts without notice: an unforeseen failure, or an automatic approval."""
    START = "start"
    """Each of its events is approved, or its NotBefore has come."""
    RETURN = "return"
    """The connector has carried it out, and machines that were listening have to ask again."""
    SUCCEED = "succeed"
    """It is carried out, and its machines are back."""
    FAIL = "fail"
    """The connector could not carry it out, or a machine did not come back."""
    CANCEL = "cancel"
    """An operator cancels it, a stronger operation supersedes it, or its window closes."""


TRANSITIONS: Final[Mapping[tuple[EventStatus | None, Trigger], EventStatus]] = MappingProxyType(
    {
        (None, Trigger.QUEUE): EventStatus.QUEUED,
        (None, Trigger.ANNOUNCE): EventStatus.SCHEDULED,
        (None, Trigger.STRIKE): EventStatus.STARTED,
        (EventStatus.QUEUED, Trigger.ANNOUNCE): EventStatus.SCHEDULED,
        (EventStatus.QUEUED, Trigger.STRIKE): EventStatus.STARTED,
        (EventStatus.QUEUED, Trigger.CANCEL): EventStatus.CANCELED,
        (EventStatus.SCHEDULED, Trigger.START): EventStatus.STARTED,
        (EventStatus.SCHEDULED, Trigger.CANCEL): EventStatus.CANCELED,
        (EventStatus.STARTED, Trigger.SUCCEED): EventStatus.COMPLETED,
        (EventStatus.STARTED, Trigger.FAIL): EventStatus.FAILED,
        (EventStatus.STARTED, Trigger.RETURN): EventStatus.RETURNING,
        (EventStatus.RETURNING, Trigger.SUCCEED): EventStatus.COMPLETED,
        (EventStatus.RETURNING, Trigger.FAIL): EventStatus.FAILED,
    }
)
"""From where, by what, to where; None is an operation that does not exist yet."""


def step(operation: str, status: EventStatus | None, trigger: Trigger) -> EventStatus:
    """Return the next status of an operation; TOO_LATE if the table has no such transition.

    None is the status of one that does not exist yet.
    """
    following = TRANSITIONS.get((status, trigger))
    if following is None:
        possible = " or ".join(other for start, other in TRANSITIONS if start is status)
        message = f"cannot {trigger} operation {operation}: it is {status or 'new'}, " + (
            f"and can only {possible}" if possible else "which is final"
        )
        raise Refused(
            ErrorCode.TOO_LATE, message, operation=operation, status=str(status), trigger=trigger
        )
    return following
