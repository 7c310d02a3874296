"""What an operator says about what is pending, and what needs one, as values: see `schemas`."""

from typing import Annotated, Final

import msgspec

from forewarn.server.operator import schemas

MAX_REFERENCES: Final = 1000
"""The most references that one request names: as many as a guest's (protocol.md section 5)."""

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
