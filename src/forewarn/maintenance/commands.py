"""What can happen to a fleet's maintenance: the causes that `schedule.decide` takes."""

from datetime import datetime, timedelta

import msgspec

from forewarn.maintenance.model import Approval, Hold, Verdict
from forewarn.maintenance.planner import Request


class RequestMaintenance(msgspec.Struct, frozen=True, kw_only=True):
    """An operator asks for maintenance.

    The snapshot holds the machines asked for, their scopes, and what is live there.
    """

    request: Request
    number: int
    """The maintenance's number, unused so far."""


class ApproveEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody says that events may start; all of them or, if one is unknown, none.

    The snapshot holds the operations of these events, live or over.
    """

    event_ids: tuple[str, ...]
    """Without regard to case; one named twice counts once."""
    approval: Approval
    scope: str | None
    """The key of the scope that the approver belongs to; None for an operator, who may approve
    anywhere."""


class CancelOperations(msgspec.Struct, frozen=True, kw_only=True):
    """An operator withdraws operations that have not started.

    The snapshot holds these operations, live or over.
    """

    operations: tuple[str, ...]
    reason: str
    maintenance: int | None = None
    """The whole maintenance: what has started or is over is left alone, and its walks end."""


class AdvanceTime(msgspec.Struct, frozen=True):
    """Time has passed: whatever is due starts.

    The snapshot holds all that is live in the scopes of these operations.
    """

    operations: tuple[str, ...] | None = None
    """What is looked at; None for all that the snapshot holds."""


class ClaimTasks(msgspec.Struct, frozen=True, kw_only=True):
    """An executor takes Started operations on, for the length of a lease."""

    operations: tuple[str, ...]
    executor: str
    lease: timedelta


class RenewLease(msgspec.Struct, frozen=True, kw_only=True):
    """An executor is still at it: its lease is lengthened."""

    operation: str
    attempt: int
    lease: timedelta


class ReleaseLeases(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever held these operations is known to be gone: anybody may claim them at once."""

    operations: tuple[str, ...]


class FinishTask(msgspec.Struct, frozen=True, kw_only=True):
    """An executor reports how an operation ended.

    The snapshot holds the operation, its machines, and what is live in its scopes.
    """

    operation: str
    attempt: int
    """The fencing number that it was claimed under."""
    succeeded: bool
    message: str
    hosts: dict[str, str] = {}
    """The new hosts of its machines, by name, as far as they are known."""


class ReportUnknownOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """An executor reports that nobody knows whether an operation was carried out."""

    operation: str
    attempt: int
    """The fencing number that it was claimed under."""
    message: str


class ResolveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """An operator says what became of an operation in doubt.

    The snapshot holds the operation, its machines, and what is live in its scopes.
    """

    operation: str
    verdict: Verdict
    by: str


class ResumeRolling(msgspec.Struct, frozen=True):
    """An operator lets the stopped walks of a maintenance go on with their next step.

    The snapshot holds the maintenance, the machines that it walks, and what is live there.
    """

    maintenance: int
    by: str = ""


class PlaceHold(msgspec.Struct, frozen=True):
    """An operator holds something; the snapshot has what is live in all that it covers."""

    hold: Hold


class ReleaseHold(msgspec.Struct, frozen=True):
    """An operator releases a hold; the snapshot has what is live in all that it covers."""

    hold: Hold
    """Its place; and `by` is who releases it."""


class PostponeOperations(msgspec.Struct, frozen=True, kw_only=True):
    """An operator moves operations later, all or none."""

    operations: tuple[str, ...]
    not_before: datetime
    by: str = ""


class RecordRequests(msgspec.Struct, frozen=True):
    """Machines of these scopes (keys) asked for their events."""

    scopes: tuple[str, ...]


class ExtendNotices(msgspec.Struct, frozen=True):
    """Guests could not read for so long: what is Scheduled moves later by that.

    The snapshot holds all that is live.
    """

    length: timedelta


class AcknowledgeFailures(msgspec.Struct, frozen=True, kw_only=True):
    """An operator took note of failed operations, all or none."""

    operations: tuple[str, ...]
    by: str


Command = (
    RequestMaintenance
    | ApproveEvents
    | CancelOperations
    | AdvanceTime
    | ClaimTasks
    | RenewLease
    | ReleaseLeases
    | FinishTask
    | ReportUnknownOutcome
    | ResolveOutcome
    | ResumeRolling
    | PlaceHold
    | ReleaseHold
    | PostponeOperations
    | RecordRequests
    | ExtendNotices
    | AcknowledgeFailures
)
