"""The pages of what was: the history of operations, as a file too, and the audit log.

The file, CSV for spreadsheets, is written page by page as the browser takes it, so that a history
of millions costs no more memory than one page. Operations are read newest first:
those that are announced while a file is written are not in it.
"""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from forewarn import times
from forewarn.maintenance import model
from forewarn.server.operator import administration, fields, routing, schemas, views
from forewarn.server.operator.routing import Backend
from forewarn.server.operator.table import PAGE
from forewarn.server.page import forms
from forewarn.server.page.forms import FilledForm
from forewarn.server.page.routes import PageContext
from forewarn.store.port import HistoryQuery, Page, Place, Reading
from forewarn.vocabulary import AccessRole, EventStatus, EventType

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

Pages: TypeAlias = AsyncIterator[tuple[schemas.OperationView, ...]]
"""Operations, some at a time."""

Types = tuple[EventType, ...]
Statuses = tuple[EventStatus, ...]


class HistoryFilter:
    """The filters of the history, as a query has them."""

    def __init__(self, form: FilledForm, types: Types, statuses: Statuses) -> None:
        self.form = form
        self.types = types
        self.statuses = statuses

    def query(self, backend: Backend, limit: int) -> HistoryQuery:
        """Return the query for the store; Refused (INVALID) if a filter cannot be read."""
        form, given = self.form, forms.span(self.form, backend.now())
        number = form.text("maintenance")
        return HistoryQuery(
            machine=model.key(form.text("machine")),
            scope=model.key(form.text("scope")),
            maintenance=forms.number(number) if number else None,
            event_types=self.types,
            statuses=self.statuses,
            since=given["since"],
            until=given["until"],
            after=routing.place_before(form.text("cursor")),
            limit=limit,
        )

    @property
    def link(self) -> str:
        """The query of links to it, without the cursor."""
        form = self.form.filled(cursor="")
        pairs = [pair for pair in form.pairs() if pair[1]]
        pairs += [("event_type", each.value) for each in self.types]
        pairs += [("status", each.value) for each in self.statuses]
        return forms.of_pairs(pairs).query()


@PAGE.route("GET", "/history", AccessRole.VIEWER)
async def show_history(  # noqa: PLR0913 - the filters are the query's parameters
    request: Request,
    backend: Backend,
    page: PageContext,
    *,
    machine: routing.Name = "",
    scope: str = "",
    maintenance: routing.Name = "",
    event_type: Types = (),
    status: Statuses = (),
    since: routing.Name = "",
    until: routing.Name = "",
    cursor: routing.Name = "",
    file: Literal["csv"] | None = None,
) -> Response:
    """List operations, the newest announcement first; or send all of them as a file."""
    texts = {"machine": machine, "scope": scope, "maintenance": maintenance}
    texts |= {"since": since, "until": until, "cursor": cursor}
    wanted = HistoryFilter(FilledForm({}).filled(**texts), event_type, status)
    inventory, now = backend.inventory.snapshot(), backend.now()
    mistake, found, code = None, Page(operations=()), 200
    try:
        query = wanted.query(backend, SHOWN if file is None else EXPORTED)
        if file is not None:
            return _file(_exported(backend, query))
        found = await page.once(query, lambda: backend.read(lambda r: r.history(query)))
    except model.Refused as error:
        mistake = forms.mistake_of(error, wanted.form, (fields.HISTORY,))
        code = 400

    def make() -> Mapping[str, Any]:
        return {
            "wanted": wanted,
            "form": wanted.form,
            "mistake": mistake,
            "types": list(EventType),
            "statuses": list(EventStatus),
            "operations": views.operations(found.operations, inventory, now),
            "next": routing.history_cursor(found),
        }

    return await page.show(request, "history.html", make, status=code)


async def _exported(backend: Backend, query: HistoryQuery) -> Pages:
    """Yield the operations of a query, a page at a time."""
    inventory, now = backend.inventory.snapshot(), backend.now()
    while True:
        asked = query

        def read(
            reading: Reading, asked: HistoryQuery = asked
        ) -> tuple[tuple[schemas.OperationView, ...], Place | None]:
            found = reading.history(asked)
            return views.operations(found.operations, inventory, now), found.next

        operations, following = await backend.read(read)
        yield operations
        if following is None:
            return
        query = msgspec.structs.replace(query, after=following)


def _file(pages: Pages) -> Response:
    headers = {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": 'attachment; filename="forewarn-history.csv"',
    }
    return StreamingResponse(as_csv(pages), media_type="text/csv; charset=utf-8", headers=headers)


async def as_csv(found: Pages) -> AsyncIterator[bytes]:
    """Yield the CSV file of operations."""
    yield _written([COLUMNS])
    async for operations in found:
        yield await asyncio.to_thread(_rows_of, operations)


def rows(operations: Iterable[schemas.OperationView]) -> Iterator[tuple[str, ...]]:
    """Yield the row of each event; an operation without events has one, too."""
    for operation in operations:
        for event in operation.events:
            approval = event.approval
            yield tuple(
                map(
                    cell,
                    (
                        operation.id,
                        operation.maintenance,
                        event.id,
                        operation.event_type,
                        operation.status,
                        operation.source,
                        event.scope,
                        event.update_domain,
                        " ".join(event.machines),
                        " ".join(operation.hosts),
                        times.precise(operation.announced_at),
                        times.precise(operation.not_before),
                        approval and approval.by,
                        approval and approval.kind,
                        approval and times.precise(approval.at),
                        operation.started_at and times.precise(operation.started_at),
                        operation.start_cause,
                        operation.ended_at and times.precise(operation.ended_at),
                        operation.took_seconds,
                        operation.outcome,
                        operation.acknowledged_by,
                        operation.description,
                    ),
                )
            )


def cell(value: object) -> str:
    """Return a value as a cell; None is empty.

    A text that a spreadsheet would calculate has an apostrophe before it, as spreadsheets have for
    text: descriptions and outcomes are other people's words.
    """
    if value is None:
        return ""
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def _rows_of(operations: Iterable[schemas.OperationView]) -> bytes:
    return _written(rows(operations))


def _written(lines: Iterable[Iterable[str]]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(lines)
    return file.getvalue().encode()


@PAGE.route("GET", "/audit", AccessRole.OPERATOR)
async def show_audit(
    request: Request,
    backend: Backend,
    page: PageContext,
    *,
    by: routing.Name = "",
    since: routing.Name = "",
    until: routing.Name = "",
    logins: routing.Name = "",
    cursor: routing.Name = "",
) -> Response:
    """List what operators asked, newest first."""
    form = FilledForm({}).filled(by=by, since=since, until=until, logins=logins)
    mistake, found, code = None, schemas.AuditPage(records=()), 200
    try:
        given = forms.span(form, backend.now())
        found = await administration.read_audit(
            backend,
            by=form.text("by"),
            since=given["since"],
            until=given["until"],
            logins=form.checked("logins"),
            cursor=cursor,
            limit=SHOWN,
        )
    except model.Refused as error:
        mistake = forms.mistake_of(error, form, (fields.HISTORY,))
        code = 400

    def make() -> Mapping[str, Any]:
        return {
            "form": form,
            "mistake": mistake,
            "link": form.query(),
            "records": found.records,
            "next": found.next,
        }

    return await page.show(request, "audit.html", make, status=code)
