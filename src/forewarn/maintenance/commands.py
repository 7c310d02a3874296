"""What can be asked for or reported: the commands that `decide.decide` takes."""

from datetime import datetime, timedelta

import msgspec

from forewarn.maintenance.model import Approval, Hold, Verdict
from forewarn.maintenance.planner import Request


class Command(msgspec.Struct, frozen=True):
    """Something asked or reported; `Snapshot` says what must be read for it."""


class RequestMaintenance(Command, frozen=True, kw_only=True):
    """An operator asks for maintenance."""

    request: Request
    number: int
    """The maintenance's number, unused so far."""


class ApproveEvents(Command, frozen=True, kw_only=True):
    """A guest or an operator approves events: all of them or, if one is unknown, none."""

    event_ids: tuple[str, ...]
    """In any case; an id named twice counts once."""
    approval: Approval
    scope: str | None
    """The key of the approver's scope; None for an operator, who may approve in every scope."""


class CancelOperations(Command, frozen=True, kw_only=True):
    """An operator cancels operations that have not started."""

    operations: tuple[str, ...]
    reason: str
    maintenance: int | None = None
    """Set to cancel all of a maintenance: what has started or ended is left alone, and its rolling
    updates finish."""


class AdvanceTime(Command, frozen=True):
    """Time has passed: start whatever is due."""

    operations: tuple[str, ...] | None = None
    """The ids to look at; None for all of the snapshot."""


class ClaimTasks(Command, frozen=True, kw_only=True):
    """An executor claims Started operations for the length of a lease."""

    operations: tuple[str, ...]
    executor: str
    lease: timedelta


class RenewLease(Command, frozen=True, kw_only=True):
    """An executor is still at work and extends its lease."""

    operation: str
    attempt: int
    """The fencing number that it was claimed under, here and below."""
    lease: timedelta


class ReleaseLeases(Command, frozen=True, kw_only=True):
    """The executors of these operations are known to be gone: anyone may claim them at once."""

    operations: tuple[str, ...]


class FinishTask(Command, frozen=True, kw_only=True):
    """An executor reports how an operation ended."""

    operation: str
    attempt: int
    succeeded: bool
    message: str
    hosts: dict[str, str] = {}
    """The new hosts of its machines by name, as far as the connector knows them."""


class ReportUnknownOutcome(Command, frozen=True, kw_only=True):
    """An executor reports that nobody knows whether an operation was carried out."""

    operation: str
    attempt: int
    message: str


class RecordReturns(Command, frozen=True):
    """Awaited machines of these operations may be back: they asked, or left the fleet."""

    operations: tuple[str, ...]


class ResolveOutcome(Command, frozen=True, kw_only=True):
    """An operator records the result of an operation whose outcome is unknown."""

    operation: str
    verdict: Verdict
    by: str


class ResumeRolling(Command, frozen=True):
    """An operator resumes the paused rolling updates of a maintenance."""

    maintenance: int
    by: str = ""


class PlaceHold(Command, frozen=True):
    """An operator places a hold."""

    hold: Hold


class ReleaseHold(Command, frozen=True):
    """An operator releases a hold."""

    hold: Hold
    """Its kind and name; `by` is who releases it."""


class PostponeOperations(Command, frozen=True, kw_only=True):
    """An operator moves operations later, all or none."""

    operations: tuple[str, ...]
    not_before: datetime
    by: str = ""


class RecordRequests(Command, frozen=True):
    """Machines of these scopes (keys) asked for their events."""

    scopes: tuple[str, ...]


class ExtendNotices(Command, frozen=True):
    """Guests could not read their documents for some time: what is Scheduled moves later by it."""

    length: timedelta


class AcknowledgeFailures(Command, frozen=True, kw_only=True):
    """An operator acknowledges failed operations, all or none."""

    operations: tuple[str, ...]
    by: str
