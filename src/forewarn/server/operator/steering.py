"""What an operator says about what is pending, and what needs one, as values: see `schemas`."""

from datetime import datetime
from typing import Annotated, Final

import msgspec

from forewarn.maintenance import alerts
from forewarn.maintenance.model import HoldKind, Verdict
from forewarn.server.operator import schemas

MAX_REFERENCES: Final = 1000
"""The most references that one request names: as many as a guest's (protocol.md section 5)."""

MAX_ITEMS: Final = 1000
"""The most things that one answer lists: nobody reads more, and the count is whole."""

MAX_FAILURES: Final = 1000
"""The most failures that nobody took note of which are looked at, the latest first."""

References = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_REFERENCES)]
Reason = Annotated[str, msgspec.Meta(max_length=500)]


class ApprovalRequest(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's word on the guests' behalf: all of it or, if one is unknown, nothing."""

    references: References
    """Event ids, operations (`12.1`) or maintenances (`12`)."""
    by: schemas.ShortText = ""
    """Who says so, kept in history."""


class CancellationRequest(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Withdraws what has not started."""

    reference: str
    """An event's id, an operation (`12.1`) or a maintenance (`12`)."""
    reason: Reason = ""
    """Kept in history; where it is empty, that an operator cancelled it."""
    by: schemas.ShortText = ""
    """Who cancels, kept in history."""


class ResumptionRequest(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lets the stopped walks of a maintenance go on."""

    by: schemas.ShortText = ""
    """Who says so, kept in history."""


class HoldPlace(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a hold covers."""

    kind: HoldKind
    name: schemas.ShortText = ""
    """The scope's, the machine's, or the host's as the fleet spells it; `""` for everything."""


class HoldRequest(HoldPlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lets nothing of this start until it is released."""

    reason: Reason = ""
    """Shown to whoever asks why nothing starts."""
    by: schemas.ShortText = ""
    """Who holds it."""


class ReleaseRequest(HoldPlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Takes a hold back."""

    by: schemas.ShortText = ""
    """Who says so, kept in history."""


class Hold(schemas.Value, frozen=True, kw_only=True):
    """A hold that is on."""

    kind: HoldKind
    name: str
    reason: str
    by: str
    at: datetime
    operations: schemas.Names
    """What it keeps from starting now."""


class HoldList(schemas.Value, frozen=True, kw_only=True):
    """All holds, the oldest first."""

    holds: tuple[Hold, ...]


class PostponementRequest(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moves what is Scheduled later, all of it or nothing."""

    reference: str
    """An event's id, an operation (`12.1`) or a maintenance (`12`)."""
    not_before: schemas.Moment
    """Later than what guests have read."""
    by: schemas.ShortText = ""
    """Who says so, kept in history."""


class NoteRequest(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Takes note of failures, so that they no longer need attention: all of them or none."""

    references: References
    """Operations (`12.1`), maintenances (`12`) or events' ids; all of them Failed."""
    by: schemas.ShortText = ""
    """Who takes note, kept in history."""


class ResolutionRequest(schemas.Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says what became of an operation of which nobody knows whether it was carried out."""

    verdict: Verdict
    """`repeat` lets it be carried out again, as far as nobody knows that it was."""
    by: schemas.ShortText = ""
    """Who says so, kept in history."""


class AttentionItem(schemas.Value, frozen=True, kw_only=True):
    """One thing that an operator should look at."""

    kind: alerts.AlertKind
    about: str
    """An operation (`12.1`), a maintenance (`12`), what is held (`scope web`), or `clock`."""
    message: str
    since: datetime


class AttentionList(schemas.Value, frozen=True, kw_only=True):
    """What needs an operator, the oldest first; empty when all is well."""

    now: datetime
    """The service's time, at which it was so."""
    count: int
    items: tuple[AttentionItem, ...]
    """The first MAX_ITEMS of them."""
