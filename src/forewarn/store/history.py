"""Which operations a page of history holds, and where the next one begins.

A cursor says where a page ended, not how many rows came before, so pages neither repeat nor skip
an operation while new ones arrive. People are to see it as opaque.
"""

import base64
import binascii
import re
from typing import Any

from sqlalchemy import BigInteger, Select, literal, select, tuple_

from forewarn.maintenance.model import Refused
from forewarn.store import tables
from forewarn.store.port import MAX_PAGE, HistoryQuery
from forewarn.vocabulary import ErrorCode

MAX_CURSOR = 100
"""The most characters of a cursor; ours have at most 56."""

_PLACE = re.compile(r"(-?\d{1,18})\.(\d{1,18})")

_operations = tables.operations.c


def cursor(announced: int, sequence: int) -> str:
    """Return the cursor of what comes after this operation.

    Args:
        announced: Its announcement, in microseconds since 1970.
        sequence: Its number in the order of first saving.
    """
    return base64.urlsafe_b64encode(f"{announced}.{sequence}".encode()).decode().rstrip("=")


def _place(text: str) -> tuple[int, int]:
    found = None
    if len(text) <= MAX_CURSOR:
        try:
            padded = text + "=" * (-len(text) % 4)
            plain = base64.b64decode(padded, altchars=b"-_", validate=True)
            found = _PLACE.fullmatch(plain.decode("ascii"))
        except (binascii.Error, ValueError):
            found = None
    if found is None:
        message = (
            f"the cursor {text[:MAX_CURSOR]!r} is none of ours: pass the cursor of the page "
            "before as it is, or none for the first page"
        )
        raise Refused(ErrorCode.INVALID, message, cursor=text[:MAX_CURSOR])
    return int(found[1]), int(found[2])


def statement(query: HistoryQuery) -> Select[Any]:
    """Return the statement that finds a page and, if there is more, one operation beyond it.

    Raises:
        Refused: The cursor is none of ours, or the limit is out of bounds.
    """
    if not 1 <= query.limit <= MAX_PAGE:
        message = f"a page of history holds 1 to {MAX_PAGE} operations, not {query.limit}"
        raise Refused(ErrorCode.INVALID, message, limit=query.limit)
    found = select(tables.operations)
    if query.cursor:
        announced, sequence = _place(query.cursor)
        found = found.where(
            tuple_(_operations.announced_at, _operations.sequence)
            < tuple_(literal(announced, BigInteger), literal(sequence, BigInteger))
        )
    if query.machine:
        concerned = select(tables.operation_machines.c.operation).where(
            tables.operation_machines.c.machine == query.machine
        )
        found = found.where(_operations.id.in_(concerned))
    if query.scope:
        shown = select(tables.events.c.operation).where(tables.events.c.scope == query.scope)
        found = found.where(_operations.id.in_(shown))
    if query.maintenance is not None:
        found = found.where(_operations.maintenance == query.maintenance)
    if query.event_types:
        found = found.where(_operations.event_type.in_([t.value for t in query.event_types]))
    if query.statuses:
        found = found.where(_operations.status.in_([s.value for s in query.statuses]))
    if query.since is not None:
        found = found.where(_operations.announced_at >= query.since)
    if query.until is not None:
        found = found.where(_operations.announced_at < query.until)
    newest_first = found.order_by(_operations.announced_at.desc(), _operations.sequence.desc())
    return newest_first.limit(query.limit + 1)
