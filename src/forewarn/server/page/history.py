"""The pages of what was: the history of operations, as files too, and the audit log."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery
from litestar.response import Stream

from forewarn.maintenance import model
from forewarn.server.operator import account_routes, api, requests, routing, schemas, views
from forewarn.server.operator.requests import Backend, TheBackend
from forewarn.server.page import forms, history_export, sending
from forewarn.server.page.forms import FilledForm
from forewarn.server.page.routes import ThePage, get
from forewarn.store.port import HistoryQuery, Page, Place, Reading
from forewarn.vocabulary import EventStatus, EventType

SHOWN: Final = 50
"""Operations, or records, of one page."""

FIELDS: Final = forms.FieldGroup(
    title="Filter",
    fields=tuple(
        forms.Field(name=name, label=name)
        for name in ("machine", "scope", "maintenance", "since", "until")
    ),
)
"""The filters that are typed."""

Types = FromQuery[tuple[EventType, ...]]
Statuses = FromQuery[tuple[EventStatus, ...]]


class HistoryFile(StrEnum):
    """A form in which the history is sent as a file."""

    CSV = "csv"
    JSON = "json"


class HistoryFilter:
    """What of the history is asked for, as a query has it."""

    def __init__(self, form: FilledForm, types: Types, statuses: Statuses) -> None:
        self.form = form
        self.types = types
        self.statuses = statuses

    def query(self, backend: Backend, limit: int) -> HistoryQuery:
        """Return what the store is asked; Refused (INVALID) where a filter cannot be read."""
        form, now = self.form, backend.now()
        number = form.text("maintenance")
        return HistoryQuery(
            machine=model.key(form.text("machine")),
            scope=model.key(form.text("scope")),
            maintenance=forms.number(number) if number else None,
            event_types=self.types,
            statuses=self.statuses,
            since=forms.moment(form, "since", now),
            until=forms.moment(form, "until", now),
            after=requests.place_before(form.text("cursor")),
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


@get("/history")
async def show_history(  # noqa: PLR0913 - the filters are the query's parameters
    request: "Request[Any, Any, Any]",
    backend: TheBackend,
    page: ThePage,
    *,
    machine: routing.Name = "",
    in_scope: api.InScope = "",
    maintenance: routing.Name = "",
    event_type: Types = (),
    status: Statuses = (),
    since: routing.Name = "",
    until: routing.Name = "",
    cursor: routing.Name = "",
    file: FromQuery[HistoryFile | None] = None,
) -> Response[str] | Stream:
    """List operations, the newest announcement first; or send all of them as a file."""
    texts = {"machine": machine, "scope": in_scope, "maintenance": maintenance}
    texts |= {"since": since, "until": until, "cursor": cursor}
    wanted = HistoryFilter(FilledForm({}).filled(**texts), event_type, status)
    inventory, now = backend.inventory.snapshot(), backend.now()
    mistake, found, code = None, Page(operations=()), 200
    try:
        query = wanted.query(backend, SHOWN if file is None else history_export.PAGE)
        if file is not None:
            return _file(file, _exported(backend, query))
        found = await page.once(query, lambda: backend.read(lambda r: r.history(query)))
    except model.Refused as error:
        mistake = sending.mistake_of(error, wanted.form, (FIELDS,))
        code = 400

    def make() -> Mapping[str, Any]:
        return {
            "wanted": wanted,
            "form": wanted.form,
            "mistake": mistake,
            "types": list(EventType),
            "statuses": list(EventStatus),
            "operations": views.operations(found.operations, inventory, now),
            "next": requests.history_cursor(found),
        }

    return await page.show(request, "history.html", make, status=code)


async def _exported(backend: Backend, query: HistoryQuery) -> history_export.Pages:
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


def _file(kind: HistoryFile, pages: history_export.Pages) -> Stream:
    written, media_type = (
        (history_export.as_csv(pages), "text/csv; charset=utf-8")
        if kind is HistoryFile.CSV
        else (history_export.as_json(pages), "application/json")
    )
    headers = {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": f'attachment; filename="forewarn-history.{kind}"',
    }
    return Stream(written, media_type=media_type, headers=headers)


@get("/audit")
async def show_audit(
    request: "Request[Any, Any, Any]",
    backend: TheBackend,
    page: ThePage,
    *,
    by: routing.Name = "",
    since: routing.Name = "",
    until: routing.Name = "",
    cursor: routing.Name = "",
) -> Response[str]:
    """List what operators asked, newest first."""
    form = FilledForm({}).filled(by=by, since=since, until=until)
    mistake, found, code = None, schemas.AuditPage(records=()), 200
    try:
        found = await account_routes.read_audit.fn(
            backend,
            by=form.text("by"),
            since=forms.moment(form, "since", backend.now()),
            until=forms.moment(form, "until", backend.now()),
            cursor=cursor,
            limit=SHOWN,
        )
    except model.Refused as error:
        mistake = sending.mistake_of(error, form, (FIELDS,))
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


ROUTES: Final = tuple(each for each in vars().values() if isinstance(each, HTTPRouteHandler))
