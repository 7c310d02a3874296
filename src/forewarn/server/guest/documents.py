"""The document of each scope as bytes, kept by the changefeed.

A scope without events, as most are at any time, costs its `Scope` alone: what it reads depends
only on its incarnation and is rendered once for all such scopes.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from forewarn.maintenance import model
from forewarn.maintenance.model import Changes, Operation, Scope
from forewarn.protocol import codec, document
from forewarn.protocol.versions import Version
from forewarn.server.relay_feed import PublishedEvent, ScopeDocument
from forewarn.vocabulary import EventStatus, ScopeKind

MAX_EMPTY: Final = 1024
"""How many empty documents are kept rendered: incarnations times versions, of which a fleet has
few. When there are more, all are rendered again."""


def shown(operation: Operation, event: model.Event) -> document.Event:
    """Return an operation's event as guests read it; the operation is visible."""
    scheduled = operation.status is EventStatus.SCHEDULED
    return document.Event(
        event_id=event.id,
        status=EventStatus.SCHEDULED if scheduled else EventStatus.STARTED,
        event_type=operation.event_type,
        resources=event.machines,
        not_before=operation.not_before if scheduled else None,
        description=operation.description,
        source=operation.source,
        duration_seconds=operation.duration_seconds,
    )


class RenderedDocument(msgspec.Struct):
    """A document as a version shows it."""

    incarnation: int
    body: bytes
    endings: dict[tuple[bool, bool], bytes] = {}
    """What ends the answers to polls, once it was written: by whether the client has the document,
    and whether its connection ends."""


class _Live(msgspec.Struct):
    """A scope's visible events, and its document as far as somebody has asked for it."""

    events: dict[str, tuple[int, document.Event]] = {}
    """By id: the incarnation that first showed it, and what guests read."""
    rendered: dict[str, RenderedDocument] = {}
    """By version's name."""


class Documents:
    """Every scope's document, always as of the last change; used on the event loop alone."""

    def __init__(self) -> None:
        self._scopes: dict[str, Scope] = {}
        self._live: dict[str, _Live] = {}
        self._empty: dict[tuple[int, str], RenderedDocument] = {}

    def fill(self, scopes: Iterable[Scope], operations: Iterable[Operation] = ()) -> None:
        """Take the documents before the first request; the operations are those that show."""
        for scope in scopes:
            self._scopes[_key(scope)] = scope
        for operation in operations:
            self._put(operation)

    def learn(self, changes: Changes) -> None:
        """Follow what changed, all of it before the next request."""
        for scope in changes.scopes:
            key = _key(scope)
            self._scopes[key] = scope
            if key in self._live:
                self._live[key].rendered.clear()
        for operation in changes.operations:
            self._put(operation)
        for key in changes.removed_scopes:
            self._scopes.pop(key, None)
            self._live.pop(key, None)

    def replace(
        self, documents: Iterable[ScopeDocument], removed_scopes: Iterable[str] = ()
    ) -> None:
        """Take whole documents in place of those that their scopes had."""
        for whole in documents:
            key = _key(whole.scope)
            self._scopes[key] = whole.scope
            events = {one.event.event_id: (one.published, one.event) for one in whole.events}
            if events:
                self._live[key] = _Live(events)
            else:
                self._live.pop(key, None)
        for key in removed_scopes:
            self._scopes.pop(key, None)
            self._live.pop(key, None)

    def whole(self, key: str) -> ScopeDocument:
        """Return a scope with its document, such as `replace` takes, or raise KeyError."""
        scope, live = self._scopes[key], self._live.get(key)
        events = () if live is None else live.events.values()
        return ScopeDocument(
            scope=scope,
            events=tuple(PublishedEvent(published=first, event=event) for first, event in events),
        )

    def _put(self, operation: Operation) -> None:
        for event in operation.events:
            if event.silent:
                continue  # its scope was off when it was made: nobody is told
            live = self._live.get(event.scope)
            if operation.status.visible:
                if live is None:
                    live = self._live[event.scope] = _Live()
                live.events[event.id] = (event.published, shown(operation, event))
                live.rendered.clear()
            elif live is not None:
                live.events.pop(event.id, None)
                live.rendered.clear()
                if not live.events:
                    del self._live[event.scope]

    def scope(self, key: str) -> Scope:
        """Return a scope, or raise KeyError."""
        return self._scopes[key]

    def page(self, key: str, version: Version) -> RenderedDocument:
        """Return a scope's document as this version shows it, or raise KeyError."""
        scope = self._scopes[key]
        live = self._live.get(key)
        if live is None:
            return self._empty_page(scope.incarnation, version)
        page = live.rendered.get(version.name)
        if page is None:
            page = live.rendered[version.name] = _render(scope, live, version)
        return page

    def _empty_page(self, incarnation: int, version: Version) -> RenderedDocument:
        page = self._empty.get((incarnation, version.name))
        if page is None:
            if len(self._empty) >= MAX_EMPTY:
                self._empty.clear()
            body = codec.encode_document(document.Document(incarnation=incarnation), version)
            page = self._empty[incarnation, version.name] = RenderedDocument(incarnation, body)
        return page


# Its key, and where the name is its own key, that very object: there are many.
def _key(scope: Scope) -> str:
    key = scope.key
    return scope.name if key == scope.name else key


# By publication, then by EventId (protocol.md section 4).
def _render(scope: Scope, live: _Live, version: Version) -> RenderedDocument:
    order = sorted(live.events, key=lambda event_id: (live.events[event_id][0], event_id))
    body = codec.encode_document(
        document.Document(
            incarnation=scope.incarnation,
            events=tuple(live.events[event_id][1] for event_id in order),
            cloud_service=scope.kind is ScopeKind.CLOUD_SERVICE,
        ),
        version,
    )
    return RenderedDocument(scope.incarnation, body)
