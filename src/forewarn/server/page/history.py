"""The pages of what was: the history of operations, as a file too, and the audit log.

The file, CSV for spreadsheets, is written page by page as the browser takes it, so that a history
of millions costs no more memory than one page. Operations are read newest first:
those that are announced while a file is written are not in it.
"""

import csv
import functools
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from starlette.responses import Response, StreamingResponse

from forewarn import times
from forewarn.maintenance import model
from forewarn.server.operator import administration, api, fields, routing, schemas
from forewarn.server.operator.table import PAGE
from forewarn.server.page import forms
from forewarn.server.page.forms import Draft, FilledForm
from forewarn.server.page.routes import PageRequest
from forewarn.vocabulary import AccessRole, EventStatus, EventType

T = TypeVar("T")

SHOWN: Final = 50
"""Operations, or records, of one page."""

COLUMNS: Final = (
    *("operation", "maintenance", "event", "type", "status", "source", "scope", "update_domain"),
    *("machines", "hosts", "announced_at", "not_before", "approved_by", "approver", "approved_at"),
    *("started_at", "start_cause", "ended_at", "took_seconds", "outcome", "acknowledged_by"),
    "description",
)
"""The columns of the CSV file, which has a row for each event."""

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of cells that spreadsheets would calculate."""

EXPORTED: Final = 500
"""Operations that are read at once."""

SOURCES: Final = {
    "operation": "id",
    "type": "event_type",
    "event": "event.id",
    "scope": "event.scope",
    "update_domain": "event.update_domain",
    "machines": "event.machines",
    "approved_by": "event.approval.by",
    "approver": "event.approval.kind",
    "approved_at": "event.approval.at",
}
"""The fields of an operation, or of its event, with other names than their columns."""

Types = tuple[EventType, ...]
Statuses = tuple[EventStatus, ...]


async def _filtered(
    page: PageRequest, form: FilledForm, ask: Callable[[Mapping[str, Any]], Awaitable[T]], empty: T
) -> tuple[T, Draft]:
    """Return the answer for the times in a filter, and the filter; `empty` if it is refused."""
    try:
        return await ask(forms.span(form, page.backend.now())), Draft(form)
    except model.Refused as error:
        return empty, page.refused(error, form, (fields.HISTORY,))._replace(status=400)


@PAGE.route("GET", "/history", AccessRole.VIEWER)
async def show_history(  # noqa: PLR0913 - the filters are the query's parameters
    page: PageRequest,
    *,
    machine: routing.Name = "",
    scope: str = "",
    maintenance: routing.Name = "",
    event_type: Types = (),
    status: Statuses = (),
    since: routing.Name = "",
    until: routing.Name = "",
    cursor: str = "",
    file: Literal["csv"] | None = None,
) -> Response:
    """List operations, the newest announcement first; or send all of them as a file."""
    del since, until  # the form has them
    form = FilledForm(page.request.query_params.multi_items())
    wanted: dict[str, Any] = {"machine": machine, "scope": scope}
    wanted |= {"event_type": event_type, "status": status}
    empty: schemas.HistoryPage | Response = schemas.HistoryPage(operations=())

    async def ask(span: Mapping[str, Any]) -> schemas.HistoryPage | Response:
        given = {
            **wanted,
            **span,
            "maintenance": forms.number(maintenance) if maintenance else None,
        }
        read = functools.partial(api.read_history, page.backend, **given)
        if file is not None:
            first = await read(cursor=cursor, limit=EXPORTED)
            return _file(_exported(page, read, first))
        key = "history", cursor, *given.items()
        return await page.once(key, lambda: read(cursor=cursor, limit=SHOWN))

    found, draft = await _filtered(page, form, ask, empty)
    if isinstance(found, Response):
        return found
    values = {
        "link": form.filled(cursor="").query(),
        "types": list(EventType),
        "statuses": list(EventStatus),
        "operations": found.operations,
        "next": found.next,
    }
    return await page.show("history.html", lambda: values, draft)


async def _exported(
    page: PageRequest,
    read: Callable[..., Awaitable[schemas.HistoryPage]],
    found: schemas.HistoryPage,
) -> AsyncIterator[bytes]:
    """Yield the CSV file of operations, a page at a time, and say so where its end is missing."""
    yield _written([COLUMNS])
    yield await page.backend.beside(_written, rows(found.operations))
    while found.next:
        if not page.call.is_valid():
            yield _written([("the rest is missing: the token was revoked, or has expired",)])
            return
        found = await read(cursor=found.next, limit=EXPORTED)
        yield await page.backend.beside(_written, rows(found.operations))


def _file(lines: AsyncIterator[bytes]) -> Response:
    headers = {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": 'attachment; filename="forewarn-history.csv"',
    }
    return StreamingResponse(lines, media_type="text/csv; charset=utf-8", headers=headers)


def rows(operations: Iterable[schemas.OperationView]) -> Iterator[tuple[str, ...]]:
    """Yield the row of each event."""
    for operation in operations:
        for event in operation.events:
            yield tuple(cell(_source(operation, event, column)) for column in COLUMNS)


def _source(operation: schemas.OperationView, event: schemas.EventView, column: str) -> object:
    value: Any = operation
    for part in SOURCES.get(column, column).split("."):
        value = event if part == "event" else value and getattr(value, part)
    return value


def cell(value: object) -> str:
    """Return a value as a cell; None is empty, and names have blanks between them.

    A text that a spreadsheet would calculate has an apostrophe before it, as spreadsheets have for
    text: descriptions and outcomes are other people's words.
    """
    if value is None:
        return ""
    if isinstance(value, datetime):
        return times.precise(value)
    text = " ".join(value) if isinstance(value, tuple) else str(value)
    return f"'{text}" if isinstance(value, str | tuple) and text.startswith(FORMULA) else text


def _written(lines: Iterable[Iterable[str]]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(lines)
    return file.getvalue().encode()


@PAGE.route("GET", "/audit", AccessRole.OPERATOR)
async def show_audit(
    page: PageRequest,
    *,
    by: routing.Name = "",
    since: routing.Name = "",
    until: routing.Name = "",
    logins: routing.Name = "",
    cursor: str = "",
) -> Response:
    """List what operators asked, newest first."""
    form = FilledForm().filled(by=by, since=since, until=until, logins=logins)

    async def ask(span: Mapping[str, Any]) -> schemas.AuditPage:
        wanted = {"by": form.text("by"), "logins": form.checked("logins"), **span}
        return await administration.read_audit(page.backend, cursor=cursor, limit=SHOWN, **wanted)

    found, draft = await _filtered(page, form, ask, schemas.AuditPage(records=()))
    values = {"link": form.query(), "records": found.records, "next": found.next}
    return await page.show("audit.html", lambda: values, draft)
